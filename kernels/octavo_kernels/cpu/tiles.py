"""The register tile that all matrix products here are made of, written as LLVM vectors.

A tile computes ``mr`` rows by ``nv`` vectors: ``c[r, :] = init[r, :] + sum over k of x[r, k] * w[k, :]``. It does one
fused multiply-add after another in the order of k, on accumulators that stay in registers. So an element of the product
does not depend on its tile. Neither the number of rows beside it nor the width of a vector changes a bit of it.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from octavo_kernels.cpu.jit import intrinsic
from octavo_kernels.cpu.memory import constant, round_to_bf16, widen

_F32, _I8, _I16, _I32, _I64 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_PREFETCH_BYTES = 2048  # measured: without it a single row reads bf16 weights at 60 % of the bandwidth


class Operand(StrEnum):
    """Layouts of the right operand in memory."""

    F32 = "f32"
    BF16 = "bf16"  # one row after another
    BF16_PAIRS = "bf16-pairs"  # rows k and k + 1 interleaved: one load, a shift and a mask give both


def _widen_both(builder: ir.IRBuilder, both: ir.Value, vec: ir.VectorType) -> tuple[ir.Value, ir.Value]:
    """Convert the even and the odd numbers of bf16 pairs, held as 32-bit integers, to floats."""
    even = builder.shl(both, constant(both.type, 16))
    odd = builder.and_(both, constant(both.type, 0xFFFF0000))
    return builder.bitcast(even, vec), builder.bitcast(odd, vec)


def make_widen_pair(lanes: int, vectors: int) -> Callable[..., None]:
    """Build ``widen_pair(w, wide)``.

    It converts one row of bf16 pairs at address ``w`` to two fp32 rows at address ``wide``.
    """
    vec, ints = ir.VectorType(_F32, lanes), ir.VectorType(_I32, lanes)

    @intrinsic
    def widen_pair(typingctx: Any, w: Any, wide: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            for j in range(vectors):
                source = builder.add(args[0], ir.Constant(_I64, j * lanes * 4))
                both = builder.load(builder.inttoptr(source, ints.as_pointer()), align=4)
                for row, values in enumerate(_widen_both(builder, both, vec)):
                    target = builder.add(args[1], ir.Constant(_I64, (row * vectors + j) * lanes * 4))
                    builder.store(values, builder.inttoptr(target, vec.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return widen_pair


def make_tile(lanes: int, rows: int, vectors: int, bf16_operand: Operand = Operand.BF16) -> Callable[..., None]:
    """Build ``tile(x, x_stride, w, w_stride, k, init, init_stride, c, c_stride, w_tag, c_tag)``.

    All arguments except the tags are int64: byte addresses, and strides between rows in bytes. ``x`` and ``init`` are
    fp32. A bf16 ``w`` has the layout ``bf16_operand``. For ``BF16_PAIRS``, ``k`` is even and ``w_stride`` is the stride
    of a pair.
    """
    vec, ints, halves = (ir.VectorType(kind, lanes) for kind in (_F32, _I32, _I16))

    def emit(builder: ir.IRBuilder, args: list[ir.Value], operand: Operand, bf16_out: bool) -> None:
        x, x_stride, w, w_stride, k, init, init_stride, c, c_stride = args
        module = builder.module
        fma = cgutils.get_or_insert_function(module, ir.FunctionType(vec, [vec] * 3), f"llvm.fma.v{lanes}f32")
        prefetch = cgutils.get_or_insert_function(
            module, ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32]), "llvm.prefetch.p0"
        )

        def offset(base: ir.Value, by: int) -> ir.Value:
            return builder.add(base, ir.Constant(_I64, by))

        def row(base: ir.Value, stride: ir.Value, index: int) -> ir.Value:
            return builder.add(base, builder.mul(stride, ir.Constant(_I64, index)))

        def read(address: ir.Value, kind: ir.Type, align: int) -> ir.Value:
            return builder.load(builder.inttoptr(address, kind.as_pointer()), align=align)

        def broadcast(address: ir.Value) -> ir.Value:
            one = builder.insert_element(ir.Constant(vec, ir.Undefined), read(address, _F32, 4), ir.Constant(_I32, 0))
            return builder.shuffle_vector(one, ir.Constant(vec, ir.Undefined), constant(ints, 0))

        def operand_rows(address: ir.Value) -> list[list[ir.Value]]:
            if operand is Operand.F32:
                return [[read(offset(address, j * lanes * 4), vec, 4) for j in range(vectors)]]
            if operand is Operand.BF16:
                return [[widen(builder, read(offset(address, j * lanes * 2), halves, 2)) for j in range(vectors)]]
            raw = [read(offset(address, j * lanes * 4), ints, 4) for j in range(vectors)]
            even, odd = zip(*(_widen_both(builder, both, vec) for both in raw), strict=True)
            return [list(even), list(odd)]

        depth = 2 if operand is Operand.BF16_PAIRS else 1
        row_bytes = vectors * lanes * (2 if operand is Operand.BF16 else 4)
        x_rows = [row(x, x_stride, r) for r in range(rows)]
        first = [
            [read(offset(row(init, init_stride, r), j * lanes * 4), vec, 4) for j in range(vectors)]
            for r in range(rows)
        ]
        entry, loop, done = builder.block, builder.append_basic_block("k"), builder.append_basic_block("done")
        builder.cbranch(builder.icmp_signed(">", k, ir.Constant(_I64, 0)), loop, done)

        builder.position_at_end(loop)
        index, w_row = builder.phi(_I64), builder.phi(_I64)
        sums = [[builder.phi(vec) for _ in range(vectors)] for _ in range(rows)]
        for line in range(0, row_bytes, 64):
            target = builder.inttoptr(offset(w_row, _PREFETCH_BYTES + line), _I8.as_pointer())
            builder.call(prefetch, [target, ir.Constant(_I32, 0), ir.Constant(_I32, 3), ir.Constant(_I32, 1)])
        x_offset = builder.mul(index, ir.Constant(_I64, 4))
        new = sums
        for step, w_vectors in enumerate(operand_rows(w_row)):
            for r in range(rows):
                factor = broadcast(offset(builder.add(x_rows[r], x_offset), 4 * step))
                products = [builder.call(fma, [factor, w_vectors[j], new[r][j]]) for j in range(vectors)]
                new = [*new[:r], products, *new[r + 1 :]]
        next_index, next_w = offset(index, depth), builder.add(w_row, w_stride)
        builder.cbranch(builder.icmp_signed("<", next_index, k), loop, done)
        for phi, start, later in ((index, ir.Constant(_I64, 0), next_index), (w_row, w, next_w)):
            phi.add_incoming(start, entry)
            phi.add_incoming(later, loop)

        builder.position_at_end(done)
        for r in range(rows):
            for j in range(vectors):
                sums[r][j].add_incoming(first[r][j], entry)
                sums[r][j].add_incoming(new[r][j], loop)
        for r in range(rows):
            results = []
            for j in range(vectors):
                result = builder.phi(vec)
                result.add_incoming(first[r][j], entry)
                result.add_incoming(new[r][j], loop)
                results.append(result)
            sums[r] = results
        for r in range(rows):
            for j in range(vectors):
                value = round_to_bf16(builder, sums[r][j]) if bf16_out else sums[r][j]
                size = 2 if bf16_out else 4
                address = offset(row(c, c_stride, r), j * lanes * size)
                builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=size)

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
        operand = Operand.F32 if w_tag == types.float32 else bf16_operand
        bf16_out = c_tag == types.uint16

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            emit(builder, list(args[:9]), operand, bf16_out)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9, w_tag, c_tag), codegen

    return tile
