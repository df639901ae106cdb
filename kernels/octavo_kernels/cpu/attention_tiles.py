"""The register tiles of attention: scores of keys in panels, and sums of weighted values.

A panel is 16 positions of one KV head. Its keys lie by dimension: a cache line holds one dimension of all 16 positions
in fp32, two dimensions in bf16. Its values lie by position. Both tiles read keys and values where they lie, and both
add in one order: of dimensions, and of positions. The number of rows or panels in a tile changes no bit.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from octavo_kernels.cpu.jit import intrinsic
from octavo_kernels.cpu.vectors import I64, Vectors

PANEL = 16
"""Positions of a panel."""

_LINE = 64  # bytes


def make_scores(lanes: int, rows: int, panels: int) -> Callable[..., None]:
    """Build ``scores(q, q_stride, keys, plane, head_dim, out, out_stride, tag)``.

    It computes ``out[r, 16 * p + j] = sum over i of q[r, i] * key[p, j, i]`` for ``rows`` rows of fp32 queries.
    ``keys`` is the address of the addresses of ``panels`` panels. The values of a panel lie ``plane`` bytes behind its
    keys, and are prefetched. Other arguments are addresses and strides in bytes; ``tag`` is the type of the keys.
    """
    per_panel = PANEL // lanes

    def emit_scores(builder: Any, args: list[ir.Value], narrow: bool) -> None:
        q, q_stride, keys, plane, head_dim, out, out_stride = args
        emit, per_line = Vectors(builder, lanes), 2 if narrow else 1
        starts = [emit.read_integer(emit.offset(keys, 8 * p)) for p in range(panels)]
        q_rows = [emit.row(q, q_stride, r) for r in range(rows)]
        sums = [[emit.variable() for _ in range(panels * per_panel)] for _ in range(rows)]
        lines = builder.sdiv(head_dim, ir.Constant(I64, per_line))
        with cgutils.for_range(builder, lines, intp=I64) as loop:
            line = builder.mul(loop.index, ir.Constant(I64, _LINE))
            operands = []
            for start in starts:
                address = builder.add(start, line)
                emit.prefetch(builder.add(address, plane))
                operands += [emit.offset(address, j * lanes * 4) for j in range(per_panel)]
            steps = zip(*map(emit.read_pairs, operands), strict=True) if narrow else [[*map(emit.read, operands)]]
            x_offset = builder.mul(loop.index, ir.Constant(I64, 4 * per_line))
            for step, columns in enumerate(steps):
                for q_row, row in zip(q_rows, sums, strict=True):
                    factor = emit.broadcast(emit.offset(builder.add(q_row, x_offset), 4 * step))
                    for total, column in zip(row, columns, strict=True):
                        emit.accumulate(total, factor, column)
        for r, row in enumerate(sums):
            for j, total in enumerate(row):
                emit.write(emit.offset(emit.row(out, out_stride, r), j * lanes * 4), builder.load(total))

    @intrinsic
    def scores(
        typingctx: Any,
        q: Any,
        q_stride: Any,
        keys: Any,
        plane: Any,
        head_dim: Any,
        out: Any,
        out_stride: Any,
        tag: Any,
    ) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            emit_scores(builder, list(args[:7]), tag == types.uint16)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7, tag), codegen

    return scores


def make_values(lanes: int, rows: int, vectors: int) -> Callable[..., None]:
    """Build ``values(p, p_stride, keys, plane, next_keys, column, row_bytes, count, o, o_stride, tag)``.

    It computes ``o[r, :] += sum over j of p[r, j] * value[j, :]`` for ``count`` positions and for ``vectors`` vectors
    of dimensions from the byte ``column`` on. ``keys`` is the address of the panels' addresses. The values of a panel
    lie ``plane`` bytes behind its keys, ``row_bytes`` apart. The panels at ``next_keys`` are prefetched.
    """

    def emit_values(builder: Any, args: list[ir.Value], narrow: bool) -> None:
        p, p_stride, keys, plane, next_keys, column, row_bytes, count, o, o_stride = args
        emit, size = Vectors(builder, lanes), 2 if narrow else 4
        p_rows = [emit.row(p, p_stride, r) for r in range(rows)]
        o_rows = [[emit.offset(emit.row(o, o_stride, r), j * lanes * 4) for j in range(vectors)] for r in range(rows)]
        sums = [[emit.variable(emit.read(address)) for address in row] for row in o_rows]
        read = emit.read_bf16 if narrow else emit.read

        def add_position(weight_offset: ir.Value, address: ir.Value) -> None:
            """Hold whichever is less in registers, the weights of all rows or the position's values."""
            weights = [builder.add(p_row, weight_offset) for p_row in p_rows]
            sources = [emit.offset(address, j * lanes * size) for j in range(vectors)]
            if rows < vectors:
                factors = [emit.broadcast(weight) for weight in weights]
                for j, source in enumerate(sources):
                    values = read(source)
                    for r, factor in enumerate(factors):
                        emit.accumulate(sums[r][j], factor, values)
            else:
                held = [read(source) for source in sources]
                for r, weight in enumerate(weights):
                    factor = emit.broadcast(weight)
                    for j, values in enumerate(held):
                        emit.accumulate(sums[r][j], factor, values)

        panels = builder.sdiv(emit.offset(count, PANEL - 1), ir.Constant(I64, PANEL))
        with cgutils.for_range(builder, panels, intp=I64) as panel:
            slot = builder.mul(panel.index, ir.Constant(I64, 8))
            start = builder.add(emit.read_integer(builder.add(keys, slot)), column)
            next_start = builder.add(emit.read_integer(builder.add(next_keys, slot)), column)
            first = builder.mul(panel.index, ir.Constant(I64, PANEL))
            left = builder.sub(count, first)
            whole = builder.icmp_signed("<", ir.Constant(I64, PANEL), left)
            positions = builder.select(whole, ir.Constant(I64, PANEL), left)
            with cgutils.for_range(builder, positions, intp=I64) as position:
                along = builder.mul(position.index, row_bytes)
                for line in range(0, vectors * lanes * size, _LINE):
                    emit.prefetch(emit.offset(builder.add(next_start, along), line))
                weight_offset = builder.mul(builder.add(first, position.index), ir.Constant(I64, 4))
                add_position(weight_offset, builder.add(builder.add(start, along), plane))
        for row, addresses in zip(sums, o_rows, strict=True):
            for total, address in zip(row, addresses, strict=True):
                emit.write(address, builder.load(total))

    @intrinsic
    def values(
        typingctx: Any,
        p: Any,
        p_stride: Any,
        keys: Any,
        plane: Any,
        next_keys: Any,
        column: Any,
        row_bytes: Any,
        count: Any,
        o: Any,
        o_stride: Any,
        tag: Any,
    ) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            emit_values(builder, list(args[:10]), tag == types.uint16)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 10, tag), codegen

    return values
