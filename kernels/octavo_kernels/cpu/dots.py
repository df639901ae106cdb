"""Dot products of a few query rows with keys as they lie in the cache, on LLVM vectors."""

from collections.abc import Callable

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from octavo_kernels.cpu.memory import constant, widen

_F32, _I16, _I64 = ir.FloatType(), ir.IntType(16), ir.IntType(64)


def make_dot(lanes: int, rows: int) -> Callable[..., None]:
    """Builds ``dot(q, q_stride, k, k_stride, count, vectors, s, s_stride, k_tag)``.

    ``s[r, p] = sum of q[r, :] * k[p, :]`` for ``rows`` fp32 rows of q and ``count`` > 0 keys, each ``vectors * lanes``
    wide. All arguments but the tag are int64, strides in bytes.
    """
    vec, halves = ir.VectorType(_F32, lanes), ir.VectorType(_I16, lanes)

    def emit(builder: ir.IRBuilder, args: list[ir.Value], narrow: bool) -> None:
        q, q_stride, k, k_stride, count, vectors, s, s_stride = args
        fma = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vec, [vec] * 3), f"llvm.fma.v{lanes}f32")
        add_up = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_F32, [_F32, vec]), f"llvm.vector.reduce.fadd.v{lanes}f32"
        )

        def number(value: int) -> ir.Constant:
            return ir.Constant(_I64, value)

        def read(address: ir.Value, kind: ir.Type) -> ir.Value:
            align = 2 if kind is halves else 4
            return builder.load(builder.inttoptr(address, kind.as_pointer()), align=align)

        q_rows = [builder.add(q, builder.mul(q_stride, number(r))) for r in range(rows)]
        s_rows = [builder.add(s, builder.mul(s_stride, number(r))) for r in range(rows)]
        entry, keys, depth, finish, done = (
            builder.block, *(builder.append_basic_block(name) for name in ("keys", "depth", "finish", "done"))
        )  # fmt: skip
        builder.branch(keys)

        builder.position_at_end(keys)
        position, key = builder.phi(_I64), builder.phi(_I64)
        builder.branch(depth)

        builder.position_at_end(depth)
        index = builder.phi(_I64)
        sums = [builder.phi(vec) for _ in range(rows)]
        if narrow:
            key_vector = widen(builder, read(builder.add(key, builder.mul(index, number(lanes * 2))), halves))
        else:
            key_vector = read(builder.add(key, builder.mul(index, number(lanes * 4))), vec)
        q_offset = builder.mul(index, number(lanes * 4))
        new = [
            builder.call(fma, [read(builder.add(q_rows[r], q_offset), vec), key_vector, sums[r]]) for r in range(rows)
        ]
        next_index = builder.add(index, number(1))
        builder.cbranch(builder.icmp_signed("<", next_index, vectors), depth, finish)
        index.add_incoming(number(0), keys)
        index.add_incoming(next_index, depth)
        for total, later in zip(sums, new, strict=True):
            total.add_incoming(constant(vec, 0.0), keys)
            total.add_incoming(later, depth)

        builder.position_at_end(finish)
        for r in range(rows):
            result = builder.call(add_up, [ir.Constant(_F32, -0.0), new[r]], fastmath=("reassoc",))
            address = builder.add(s_rows[r], builder.mul(position, number(4)))
            builder.store(result, builder.inttoptr(address, _F32.as_pointer()))
        next_position, next_key = builder.add(position, number(1)), builder.add(key, k_stride)
        builder.cbranch(builder.icmp_signed("<", next_position, count), keys, done)
        for phi, start, later in ((position, number(0), next_position), (key, k, next_key)):
            phi.add_incoming(start, entry)
            phi.add_incoming(later, finish)
        builder.position_at_end(done)

    @intrinsic
    def dot(typingctx, q, q_stride, k, k_stride, count, vectors, s, s_stride, k_tag):
        def codegen(context, builder, signature, args):
            emit(builder, list(args[:8]), k_tag == types.uint16)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 8, k_tag), codegen

    return dot
