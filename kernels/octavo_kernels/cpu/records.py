"""Records: named arguments of a kernel. Python fills them, and compiled code reads them at their address.

A kernel with more than ten arguments takes records. Numba reads one integer for a record, while a ``NamedTuple`` would
cost several microseconds for each call. The caller keeps a record until the kernel returns.
"""

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import numba
import numpy as np
from numba import types

from octavo_kernels.cpu.jit import intrinsic

R = TypeVar("R", bound=ctypes.Structure)

_C_TYPES: dict[Any, Any] = {int: ctypes.c_int64, float: ctypes.c_double}

address_of = ctypes.addressof


@dataclass_transform(kw_only_default=True)
def record(kind: type[R]) -> type[R]:
    """Lay out the annotated fields of a ``ctypes.Structure``, which are ``int`` (64 bits) or ``float`` (double)."""
    kind._fields_ = [(name, _C_TYPES[annotation]) for name, annotation in kind.__annotations__.items()]
    return kind


def reader(kind: type[R]) -> Callable[[int], R]:
    """Return the function by which compiled code reads the record at an address."""
    layout = numba.from_dtype(np.dtype(kind))

    @intrinsic
    def read(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(layout))

        return layout(types.int64), codegen

    return read


@record
class CacheLayer(ctypes.Structure):
    """One layer of the KV cache, ``[blocks, 2, heads, block_size, head_dim]``; a block lies in one piece.

    The keys of a head and block lie in panels of 16 positions (see ``attention_tiles``), the values by position.
    """

    address: int
    block_stride: int  # bytes
    heads: int
    block_size: int
    head_dim: int


@record
class StepPlaces(ctypes.Structure):
    """Addresses of a step's ``AttentionMetadata`` and of its items, equal for all layers."""

    block_tables: int  # int32
    table_stride: int  # bytes
    positions: int  # int64
    slots: int  # int64
    num_tokens: int
    items: int  # int64 [num_items, 7], see attention_plan
    num_items: int
    joins: int  # int64 [num_joins, 5]
    num_joins: int


read_cache = reader(CacheLayer)
read_step = reader(StepPlaces)
