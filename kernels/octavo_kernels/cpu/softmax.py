"""The two passes of a softmax over a row of scores, on LLVM vectors: the largest, then weights and their sum.

``lanes`` partial results each, joined in one fixed order, so that a row of one length is always summed alike.
"""

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from octavo_kernels.cpu.exponential import COEFFICIENTS, LOWEST
from octavo_kernels.cpu.memory import constant

_F32, _I32, _I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_MINUS_INFINITY = float("-inf")


def _fold(
    builder: ir.IRBuilder, vec: ir.VectorType, address: ir.Value, vectors: ir.Value, start: float,
    step: Callable[[ir.Value, ir.Value, ir.Value], ir.Value],
) -> ir.Value:  # fmt: skip
    """A loop over whole vectors: ``state = step(pointer, vector, state)``."""
    first = constant(vec, start)
    entry, loop, done = builder.block, builder.append_basic_block("fold"), builder.append_basic_block("folded")
    builder.cbranch(builder.icmp_signed(">", vectors, ir.Constant(_I64, 0)), loop, done)
    builder.position_at_end(loop)
    index, state = builder.phi(_I64), builder.phi(vec)
    offset = builder.mul(index, ir.Constant(_I64, vec.count * 4))
    pointer = builder.inttoptr(builder.add(address, offset), vec.as_pointer())
    later = step(pointer, builder.load(pointer, align=4), state)
    next_index = builder.add(index, ir.Constant(_I64, 1))
    builder.cbranch(builder.icmp_signed("<", next_index, vectors), loop, done)
    index.add_incoming(ir.Constant(_I64, 0), entry)
    index.add_incoming(next_index, loop)
    state.add_incoming(first, entry)
    state.add_incoming(later, loop)
    builder.position_at_end(done)
    result = builder.phi(vec)
    result.add_incoming(first, entry)
    result.add_incoming(later, loop)
    return result


def _join(builder: ir.IRBuilder, value: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    """Halves a vector until one lane is left."""
    undefined, width = ir.Constant(value.type, ir.Undefined), value.type.count
    half = width // 2
    while half:
        lanes = [(i + half) % width for i in range(width)]
        mask = ir.Constant(ir.VectorType(_I32, width), lanes)
        value = combine(value, builder.shuffle_vector(value, undefined, mask))
        half //= 2
    return builder.extract_element(value, ir.Constant(_I32, 0))


def make_maximum(lanes: int) -> Callable[..., float]:
    """Builds ``maximum(address, vectors)`` over ``vectors * lanes`` floats; NaN is never the largest."""
    vec = ir.VectorType(_F32, lanes)

    def emit(builder: ir.IRBuilder, address: ir.Value, vectors: ir.Value) -> ir.Value:
        def larger(a: ir.Value, b: ir.Value) -> ir.Value:
            return builder.select(builder.fcmp_ordered(">", a, b), a, b)

        best = _fold(builder, vec, address, vectors, _MINUS_INFINITY, lambda _, value, state: larger(value, state))
        return _join(builder, best, larger)

    @intrinsic
    def maximum(typingctx, address, vectors):
        return types.float32(types.int64, types.int64), lambda context, builder, signature, args: emit(builder, *args)

    return maximum


def make_weigh(lanes: int) -> Callable[..., float]:
    """Builds ``weigh(address, vectors, top)``: each score becomes ``2 ** (score - top)``; returns the sum.

    ``top`` is finite and no score is larger. The polynomial is that of ``exponential.exp2``.
    """
    vec, ints = ir.VectorType(_F32, lanes), ir.VectorType(_I32, lanes)

    def emit(builder: ir.IRBuilder, address: ir.Value, vectors: ir.Value, top: ir.Value) -> ir.Value:
        module = builder.module
        fma = cgutils.get_or_insert_function(module, ir.FunctionType(vec, [vec] * 3), f"llvm.fma.v{lanes}f32")
        floor = cgutils.get_or_insert_function(module, ir.FunctionType(vec, [vec]), f"llvm.floor.v{lanes}f32")
        undefined = ir.Constant(vec, ir.Undefined)
        tops = builder.shuffle_vector(
            builder.insert_element(undefined, top, ir.Constant(_I32, 0)), undefined, constant(ints, 0)
        )
        lowest = constant(vec, LOWEST)

        def step(pointer: ir.Value, scores: ir.Value, state: ir.Value) -> ir.Value:
            x = builder.fsub(scores, tops)
            in_range = builder.fcmp_ordered(">=", x, lowest)
            clamped = builder.select(in_range, x, lowest)
            whole = builder.call(floor, [builder.fadd(clamped, constant(vec, 0.5))])
            r = builder.fsub(clamped, whole)
            power = constant(vec, COEFFICIENTS[-1])
            for coefficient in reversed(COEFFICIENTS[:-1]):
                power = builder.call(fma, [power, r, constant(vec, coefficient)])
            exponent = builder.add(builder.fptosi(whole, ints), constant(ints, 127))
            scale = builder.bitcast(builder.shl(exponent, constant(ints, 23)), vec)
            weight = builder.select(in_range, builder.fmul(power, scale), constant(vec, 0.0))
            builder.store(weight, pointer, align=4)
            return builder.fadd(state, weight)

        return _join(builder, _fold(builder, vec, address, vectors, 0.0, step), builder.fadd)

    @intrinsic
    def weigh(typingctx, address, vectors, top):
        signature = types.float32(types.int64, types.int64, types.float32)
        return signature, lambda context, builder, signature, args: emit(builder, *args)

    return weigh
