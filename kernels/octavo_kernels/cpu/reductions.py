"""Reductions over a row of floats on LLVM vectors: the largest, softmax weights and their sum, the sum of squares.

Each keeps ``LANES`` partial results on every instruction set and joins them in one fixed order. The order follows the
length of the row alone. If the processor's vectors are shorter than ``LANES``, LLVM uses several.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from octavo_kernels.cpu.exponential import COEFFICIENTS, LOWEST
from octavo_kernels.cpu.jit import intrinsic, jit
from octavo_kernels.cpu.memory import Tag, at, constant, fma, load, widen

LANES = 16

_F32, _I16, _I32, _I64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_FLOATS, _INTS, _HALVES = (ir.VectorType(kind, LANES) for kind in (_F32, _I32, _I16))
_MINUS_INFINITY = float("-inf")


def _fold(
    builder: ir.IRBuilder, items: ir.VectorType, address: ir.Value, vectors: ir.Value, start: float,
    step: Callable[[ir.Value, ir.Value, ir.Value], ir.Value],
) -> ir.Value:  # fmt: skip
    """Emit a loop over whole vectors of ``items``: ``state = step(pointer, vector, state)``; the state is fp32."""
    first, size = constant(_FLOATS, start), 2 if items is _HALVES else 4
    entry, loop, done = builder.block, builder.append_basic_block("fold"), builder.append_basic_block("folded")
    builder.cbranch(builder.icmp_signed(">", vectors, ir.Constant(_I64, 0)), loop, done)
    builder.position_at_end(loop)
    index, state = builder.phi(_I64), builder.phi(_FLOATS)
    offset = builder.mul(index, ir.Constant(_I64, LANES * size))
    pointer = builder.inttoptr(builder.add(address, offset), items.as_pointer())
    later = step(pointer, builder.load(pointer, align=size), state)
    next_index = builder.add(index, ir.Constant(_I64, 1))
    builder.cbranch(builder.icmp_signed("<", next_index, vectors), loop, done)
    index.add_incoming(ir.Constant(_I64, 0), entry)
    index.add_incoming(next_index, loop)
    state.add_incoming(first, entry)
    state.add_incoming(later, loop)
    builder.position_at_end(done)
    result = builder.phi(_FLOATS)
    result.add_incoming(first, entry)
    result.add_incoming(later, loop)
    return result


def _join(builder: ir.IRBuilder, value: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    """Halve a vector until one lane is left."""
    half = LANES // 2
    while half:
        mask = ir.Constant(_INTS, [(i + half) % LANES for i in range(LANES)])
        value = combine(value, builder.shuffle_vector(value, ir.Constant(_FLOATS, ir.Undefined), mask))
        half //= 2
    return builder.extract_element(value, ir.Constant(_I32, 0))


def _vector_fma(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32"), [a, b, c])


@intrinsic
def maximum(typingctx: Any, address: Any, vectors: Any) -> Any:
    """Return the largest of ``vectors * LANES`` floats; NaN is never the largest."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def larger(a: ir.Value, b: ir.Value) -> ir.Value:
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        best = _fold(builder, _FLOATS, args[0], args[1], _MINUS_INFINITY, lambda _, value, state: larger(value, state))
        return _join(builder, best, larger)

    return types.float32(types.int64, types.int64), codegen


@intrinsic
def weigh(typingctx: Any, address: Any, vectors: Any, top: Any) -> Any:
    """Replace each of ``vectors * LANES`` scores by ``2 ** (score - top)``; return the sum.

    No score is larger than ``top``. The polynomial is that of ``exponential.exp2``. NaN stays NaN.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start, count, highest = args
        floor_kind = ir.FunctionType(_FLOATS, [_FLOATS])
        floor = cgutils.get_or_insert_function(builder.module, floor_kind, f"llvm.floor.v{LANES}f32")
        undefined, lowest = ir.Constant(_FLOATS, ir.Undefined), constant(_FLOATS, LOWEST)
        tops = builder.insert_element(undefined, highest, ir.Constant(_I32, 0))
        tops = builder.shuffle_vector(tops, undefined, constant(_INTS, 0))

        def step(pointer: ir.Value, scores: ir.Value, state: ir.Value) -> ir.Value:
            x = builder.fsub(scores, tops)
            in_range = builder.fcmp_ordered(">=", x, lowest)
            clamped = builder.select(in_range, x, lowest)
            whole = builder.call(floor, [builder.fadd(clamped, constant(_FLOATS, 0.5))])
            r = builder.fsub(clamped, whole)
            power = constant(_FLOATS, COEFFICIENTS[-1])
            for coefficient in reversed(COEFFICIENTS[:-1]):
                power = _vector_fma(builder, power, r, constant(_FLOATS, coefficient))
            exponent = builder.add(builder.fptosi(whole, _INTS), constant(_INTS, 127))
            scale = builder.bitcast(builder.shl(exponent, constant(_INTS, 23)), _FLOATS)
            weight = builder.select(in_range, builder.fmul(power, scale), constant(_FLOATS, 0.0))
            weight = builder.select(builder.fcmp_unordered("uno", x, x), x, weight)
            builder.store(weight, pointer, align=4)
            return builder.fadd(state, weight)

        return _join(builder, _fold(builder, _FLOATS, start, count, 0.0, step), builder.fadd)

    return types.float32(types.int64, types.int64, types.float32), codegen


@intrinsic
def _squares(typingctx: Any, address: Any, vectors: Any, tag: Any) -> Any:
    """Return the sum of the squares of ``vectors * LANES`` numbers of the tag's type."""
    narrow = tag == types.uint16

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def step(pointer: ir.Value, items: ir.Value, state: ir.Value) -> ir.Value:
            values = widen(builder, items) if narrow else items
            return _vector_fma(builder, values, values, state)

        total = _fold(builder, _HALVES if narrow else _FLOATS, args[0], args[1], 0.0, step)
        return _join(builder, total, builder.fadd)

    return types.float32(types.int64, types.int64, tag), codegen


@jit()
def sum_of_squares(address: int, count: int, tag: Tag) -> np.float32:
    """Return the sum of the squares of ``count`` numbers of the tag's type, in fp32."""
    vectors = count // LANES
    row = at(address, tag)
    total: np.float32 = _squares(address, vectors, tag)
    for i in range(vectors * LANES, count):
        value = load(row, i)
        total = fma(value, value, total)
    return total
