"""Typed access to tensors by address, for Numba.

A kernel receives plain integers (``Tensor.data_ptr()``) and a *tag* for the type of the items there. A NumPy view of a
tensor would cost more than many of the kernels. bf16 lies in memory as uint16. A load widens it by a shift, and a store
rounds to the nearest even. All arithmetic is fp32.
"""

from typing import Any, TypeAlias

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numpy.typing import NDArray

from octavo_kernels.cpu.jit import inline, intrinsic

Tag: TypeAlias = np.float32 | np.uint16
IdTag: TypeAlias = np.int32 | np.int64
Floats: TypeAlias = NDArray[np.float32]

F32 = np.float32(0)
BF16 = np.uint16(0)
I32 = np.int32(0)
I64 = np.int64(0)

_I8, _I16, _I32, _F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.FloatType()
_ITEM_SIZE = {types.float32: 4, types.uint16: 2, types.int32: 4, types.int64: 8}


def tag_of(dtype: torch.dtype) -> Tag:
    """Return the tag of a tensor's type; raise ``ValueError`` for a type that the kernels do not compute in."""
    if dtype == torch.float32:
        return F32
    if dtype == torch.bfloat16:
        return BF16
    raise ValueError(f"dtype: {dtype}, allowed: torch.float32, torch.bfloat16")


def id_tag_of(ids: torch.Tensor) -> IdTag:
    """Return the tag of a contiguous tensor of ids.

    Raises ``ValueError`` for a type other than int32 and int64, and for a tensor that is not contiguous.
    """
    if ids.dtype not in (torch.int32, torch.int64) or not ids.is_contiguous():
        raise ValueError(f"ids: {ids.dtype}, stride {ids.stride()}, allowed: int32 or int64, contiguous")
    return I32 if ids.dtype == torch.int32 else I64


@intrinsic
def at(typingctx: Any, address: Any, tag: Any) -> Any:
    """Return a pointer to items of the tag's type at ``address``."""
    signature = types.CPointer(tag)(address, tag)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return signature, codegen


@intrinsic
def item_size(typingctx: Any, tag: Any) -> Any:
    """Return the bytes of one item of the tag's type."""
    size = _ITEM_SIZE[tag]

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(ir.IntType(64), size)

    return types.int64(tag), codegen


@intrinsic
def load(typingctx: Any, pointer: Any, index: Any) -> Any:
    """Return the item at ``index``, as float32."""
    narrow = pointer.dtype == types.uint16

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = builder.load(builder.gep(args[0], [args[1]]))
        return widen(builder, value) if narrow else value

    return types.float32(pointer, types.int64), codegen


@intrinsic
def store(typingctx: Any, pointer: Any, index: Any, value: Any) -> Any:
    """Round a float32 to the pointer's type and store it at ``index``."""
    narrow = pointer.dtype == types.uint16

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = round_to_bf16(builder, args[2]) if narrow else args[2]
        builder.store(value, builder.gep(args[0], [args[1]]))
        return context.get_dummy_value()

    return types.void(pointer, types.int64, types.float32), codegen


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Prefetch the cache line at ``address``, into every level of cache."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        hints = [ir.Constant(_I32, value) for value in (0, 3, 1)]  # to read, keep, data
        builder.call(function, [builder.inttoptr(args[0], _I8.as_pointer()), *hints])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def bits_to_float(typingctx: Any, bits: Any) -> Any:
    """Return the float32 whose bits are this int32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _F32)

    return types.float32(types.int32), codegen


@intrinsic
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c`` of float32 values, rounded once."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_F32, [_F32] * 3)
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.f32"), args)

    return types.float32(types.float32, types.float32, types.float32), codegen


@inline
def address(array: NDArray[Any]) -> Any:
    """Return the address of a NumPy array that a kernel made.

    Numba frees a local array after the last use of its *name*. Take the address of an argument, or take it in a loop
    that continues to use the array. The address is signed, because Numba adds signed and unsigned integers as floats.
    """
    return np.int64(array.ctypes.data)


def like(value: ir.Value, element: ir.Type) -> ir.Type:
    """Return ``element``, or a vector of it if ``value`` is a vector."""
    return ir.VectorType(element, value.type.count) if isinstance(value.type, ir.VectorType) else element


def constant(kind: ir.Type, value: float) -> ir.Constant:
    """Return ``value`` in every lane."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def widen(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Convert bf16 bits (i16, or a vector of them) to float."""
    wide = like(value, _I32)
    shifted = builder.shl(builder.zext(value, wide), constant(wide, 16))
    return builder.bitcast(shifted, like(value, _F32))


def round_to_bf16(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Round a float (or a vector) to bf16 bits, to the nearest even; NaN stays NaN."""
    wide = like(value, _I32)
    bits = builder.bitcast(value, wide)
    odd = builder.and_(builder.lshr(bits, constant(wide, 16)), constant(wide, 1))
    rounded = builder.lshr(builder.add(builder.add(bits, constant(wide, 0x7FFF)), odd), constant(wide, 16))
    is_nan = builder.fcmp_unordered("uno", value, value)
    rounded = builder.select(is_nan, constant(wide, 0x7FC0), rounded)
    return builder.trunc(rounded, like(value, _I16))
