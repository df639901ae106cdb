"""Checks of tensors, which run before kernels get the addresses.

The kernels themselves check nothing. Each check costs well under 1 µs.
"""

import torch
from torch import Tensor

from octavo_kernels.cpu.attention_tiles import PANEL


def check_contiguous(name: str, tensor: Tensor) -> None:
    """Raise ``ValueError`` if the tensor has gaps."""
    if not tensor.is_contiguous():
        raise ValueError(f"{name}: strides {tensor.stride()}, allowed: contiguous")


def check_rows(name: str, tensor: Tensor) -> None:
    """Raise ``ValueError`` if the items of a row do not lie side by side."""
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise ValueError(f"{name}: strides {tensor.stride()}, allowed: 1 in the last dimension")


def check_weight(weight: Tensor, x: Tensor) -> None:
    """Raise ``ValueError`` unless ``weight`` is one row of ``x``."""
    if weight.dtype != x.dtype or weight.shape != x.shape[-1:] or not weight.is_contiguous():
        raise ValueError(f"weight: {weight.dtype} {tuple(weight.shape)}, allowed: {x.dtype} {tuple(x.shape[-1:])}")


def check_heads(name: str, heads: Tensor, kv_layer: Tensor) -> None:
    """Raise ``ValueError`` unless ``heads [T, heads, D]`` has whole rows of the cache's type and head size."""
    head_dim = kv_layer.shape[-1]
    if heads.dtype != kv_layer.dtype or heads.shape[-1] != head_dim or heads.stride()[1:] != (head_dim, 1):
        raise ValueError(
            f"{name}: {heads.dtype} {tuple(heads.shape)}, strides {heads.stride()}, "
            f"allowed: {kv_layer.dtype} [T, heads, {head_dim}] with heads side by side"
        )


def check_block_size(block_size: int) -> None:
    """Raise ``ValueError`` unless a block consists of whole panels."""
    if block_size < PANEL or block_size % PANEL:
        raise ValueError(f"block_size: {block_size}, allowed: a multiple of {PANEL}")


def check_cache(kv_layer: Tensor) -> None:
    """Raise ``ValueError`` unless a block of the layer ``[blocks, 2, G, block_size, D]`` lies in one piece.

    A block consists of whole panels. The head size is even, because a panel of bf16 keys holds pairs of dimensions.
    """
    _, _, kv_heads, block_size, head_dim = kv_layer.shape
    check_block_size(block_size)
    if head_dim % 2:
        raise ValueError(f"head_dim: {head_dim}, allowed: even")
    plane = block_size * head_dim
    if kv_layer.stride()[1:] != (kv_heads * plane, plane, head_dim, 1):
        raise ValueError(f"kv_layer: strides {kv_layer.stride()}, allowed: a block in one piece")


def check_ids(name: str, ids: Tensor, limit: int) -> None:
    """Raise ``ValueError`` if an id is not in ``0 .. limit - 1``."""
    if ids.numel():
        low, high = torch.aminmax(ids)
        if int(low) < 0 or int(high) >= limit:
            raise ValueError(f"{name}: {int(low)} to {int(high)}, allowed: 0 to {limit - 1}")
