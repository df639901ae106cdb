"""The register tile of linear layers, written as LLVM vectors.

A tile computes ``mr`` rows by ``nv`` vectors: ``c[r, :] = init[r, :] + sum over k of x[r, k] * w[k, :]``. It does one
fused multiply-add after another in the order of k, on accumulators that stay in registers. So an element of the product
does not depend on its tile. Neither the number of rows beside it nor the width of a vector changes a bit of it.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from octavo_kernels.cpu.jit import intrinsic
from octavo_kernels.cpu.vectors import I64, Vectors

_PREFETCH_BYTES = 2048  # measured: without it a single row reads bf16 weights at 60 % of the bandwidth


def make_widen_pair(lanes: int, vectors: int) -> Callable[..., None]:
    """Build ``widen_pair(w, wide)``.

    It converts one row of bf16 pairs at address ``w`` to two fp32 rows at address ``wide``.
    """

    @intrinsic
    def widen_pair(typingctx: Any, w: Any, wide: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            emit = Vectors(builder, lanes)
            for j in range(vectors):
                for row, values in enumerate(emit.read_pairs(emit.offset(args[0], j * lanes * 4))):
                    emit.write(emit.offset(args[1], (row * vectors + j) * lanes * 4), values)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return widen_pair


def make_tile(lanes: int, rows: int, vectors: int) -> Callable[..., None]:
    """Build ``tile(x, x_stride, w, w_stride, k, init, init_stride, c, c_stride, w_tag, c_tag)``.

    All arguments except the tags are int64: byte addresses, and strides between rows in bytes. ``x`` and ``init`` are
    fp32. A bf16 ``w`` holds rows k and k + 1 interleaved. Then ``k`` is even and ``w_stride`` is the stride of a pair.
    """

    def emit_tile(builder: Any, args: list[ir.Value], narrow: bool, narrow_out: bool) -> None:
        x, x_stride, w, w_stride, k, init, init_stride, c, c_stride = args
        emit, vector_bytes = Vectors(builder, lanes), lanes * 4
        x_rows, init_rows = ([emit.row(a, s, r) for r in range(rows)] for a, s in ((x, x_stride), (init, init_stride)))
        sums = [[emit.variable(emit.read(emit.offset(i, j * vector_bytes))) for j in range(vectors)] for i in init_rows]
        depth = 2 if narrow else 1
        count = builder.sdiv(k, ir.Constant(I64, depth))
        with cgutils.for_range(builder, count, intp=I64) as loop:
            w_row = builder.add(w, builder.mul(loop.index, w_stride))
            x_offset = builder.mul(loop.index, ir.Constant(I64, 4 * depth))
            for line in range(0, vectors * vector_bytes, 64):
                emit.prefetch(emit.offset(w_row, _PREFETCH_BYTES + line))
            operands = [emit.offset(w_row, j * vector_bytes) for j in range(vectors)]
            steps = zip(*map(emit.read_pairs, operands), strict=True) if narrow else [[*map(emit.read, operands)]]
            for step, columns in enumerate(steps):
                for x_row, row in zip(x_rows, sums, strict=True):
                    factor = emit.broadcast(emit.offset(builder.add(x_row, x_offset), 4 * step))
                    for total, column in zip(row, columns, strict=True):
                        emit.accumulate(total, factor, column)
        write, size = (emit.write_bf16, 2) if narrow_out else (emit.write, 4)
        for r, row in enumerate(sums):
            for j, total in enumerate(row):
                write(emit.offset(emit.row(c, c_stride, r), j * lanes * size), builder.load(total))

    @intrinsic
    def tile(
        typingctx: Any,
        x: Any,
        x_stride: Any,
        w: Any,
        w_stride: Any,
        k: Any,
        init: Any,
        init_stride: Any,
        c: Any,
        c_stride: Any,
        w_tag: Any,
        c_tag: Any,
    ) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            emit_tile(builder, list(args[:9]), w_tag == types.uint16, c_tag == types.uint16)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9, w_tag, c_tag), codegen

    return tile
