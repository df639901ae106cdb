"""Square transposition in registers: keys lie in the cache by position, and a product reads them by dimension."""

from typing import Any

from llvmlite import ir
from numba import types

from octavo_kernels.cpu.instruction_set import TILE
from octavo_kernels.cpu.jit import intrinsic
from octavo_kernels.cpu.memory import widen

_LANES = TILE.lanes
_F32, _I16, _I32, _I64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_FLOATS, _HALVES = ir.VectorType(_F32, _LANES), ir.VectorType(_I16, _LANES)


def _swap(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, step: int) -> tuple[ir.Value, ir.Value]:
    """Exchange the lanes of ``a`` whose number has the bit ``step`` with the lanes of ``b`` that lack it."""

    def pick(lanes: list[int]) -> ir.Value:
        return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, _LANES), lanes))

    high = [_LANES + lane - step if lane & step else lane for lane in range(_LANES)]
    low = [_LANES + lane if lane & step else lane + step for lane in range(_LANES)]
    return pick(high), pick(low)


@intrinsic
def transpose(typingctx: Any, rows: Any, offset: Any, target: Any, stride: Any, tag: Any) -> Any:
    """Write ``lanes`` numbers at ``offset`` of each of ``lanes`` rows as ``lanes`` fp32 rows, ``stride`` bytes apart.

    ``rows`` is the address of the rows' addresses. ``offset`` and ``stride`` are in bytes. The tag is that of the
    source.
    """
    narrow = tag == types.uint16

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, shift, out, out_stride, _ = args
        kind, align = (_HALVES, 2) if narrow else (_FLOATS, 4)

        def read(row: int) -> ir.Value:
            pointer = builder.inttoptr(builder.add(source, ir.Constant(_I64, 8 * row)), _I64.as_pointer())
            address = builder.add(builder.load(pointer), shift)
            items = builder.load(builder.inttoptr(address, kind.as_pointer()), align=align)
            return widen(builder, items) if narrow else items

        lines = [read(row) for row in range(_LANES)]
        step = 1
        while step < _LANES:
            for row in range(_LANES):
                if not row & step:
                    lines[row], lines[row + step] = _swap(builder, lines[row], lines[row + step], step)
            step *= 2
        for row, line in enumerate(lines):
            address = builder.add(out, builder.mul(out_stride, ir.Constant(_I64, row)))
            builder.store(line, builder.inttoptr(address, _FLOATS.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64, tag), codegen
