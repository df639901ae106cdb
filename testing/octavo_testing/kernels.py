"""Input of the kernels, drawn at random, and the comparison of their output with the reference."""

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_kernels import AttentionMetadata, Kernels


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """Allow a few units in the last place of the type, by the size of the row."""
    assert actual.dtype == expected.dtype
    tolerance = 2e-2 if actual.dtype == torch.bfloat16 else 2e-5
    scale = max(1.0, float(expected.float().abs().max())) if expected.numel() else 1.0
    torch.testing.assert_close(actual.float(), expected.float(), rtol=tolerance, atol=tolerance * scale)


def keys_to_panels(kv_cache: Tensor) -> Tensor:
    """Return ``[blocks, layers, 2, G, block_size, D]`` with its keys in panels, as the CPU kernels keep them."""
    panels, (size, per_line) = kv_cache.clone(), _line(kv_cache)
    keys = kv_cache[:, :, 0].unflatten(-1, (-1, per_line)).unflatten(-3, (-1, size))
    panels[:, :, 0] = keys.transpose(-3, -2).reshape(panels[:, :, 0].shape)
    return panels


def keys_to_rows(kv_cache: Tensor) -> Tensor:
    """Undo ``keys_to_panels``."""
    rows, (size, per_line) = kv_cache.clone(), _line(kv_cache)
    keys = kv_cache[:, :, 0].flatten(-2).unflatten(-1, (-1, kv_cache.shape[-1] // per_line, size, per_line))
    rows[:, :, 0] = keys.transpose(-3, -2).reshape(rows[:, :, 0].shape)
    return rows


def _line(kv_cache: Tensor) -> tuple[int, int]:
    """Return the positions of a panel, and the dimensions of a position in a cache line."""
    return 16, 4 // kv_cache.element_size()


@dataclass(frozen=True)
class PagedBatch:
    """A step over a cache of two layers whose blocks lie in random order; blocks without an owner are NaN."""

    query_lens: list[int]
    seq_lens: list[int]
    qkv: Tensor
    cache: Tensor
    block_tables: Tensor
    cos_sin: Tensor
    heads: int
    kv_heads: int
    block_size: int
    head_dim: int

    @classmethod
    def random(
        cls,
        query_lens: list[int],
        seq_lens: list[int],
        *,
        dtype: torch.dtype = torch.float32,
        heads: int = 6,
        kv_heads: int = 2,
        block_size: int = 16,
        head_dim: int = 64,
        seed: int = 0,
    ) -> "PagedBatch":
        """Fill the blocks of each sequence, and draw queries, keys and values."""
        generator = torch.Generator().manual_seed(seed)
        needed = [-(-n // block_size) for n in seq_lens]
        blocks = sum(needed) + 2
        order = torch.randperm(blocks, generator=generator, dtype=torch.int32)
        cache = torch.full((blocks, 2, 2, kv_heads, block_size, head_dim), float("nan"))
        tables, used = torch.zeros(len(seq_lens), max(needed), dtype=torch.int32), 0
        for i, (count, query_len, seq_len) in enumerate(zip(needed, query_lens, seq_lens, strict=True)):
            tables[i, :count] = order[used : used + count]
            used += count
            for position in range(seq_len - query_len):
                slot = cache[tables[i, position // block_size], :, :, :, position % block_size]
                slot.copy_(torch.randn(slot.shape, generator=generator))
        qkv = torch.randn(sum(query_lens), (heads + 2 * kv_heads) * head_dim, generator=generator)
        angles = torch.rand(max(seq_lens), head_dim // 2, generator=generator) * 6.28
        return cls(
            query_lens, seq_lens, qkv.to(dtype), cache.to(dtype), tables, torch.cat([angles.cos(), angles.sin()], 1),
            heads, kv_heads, block_size, head_dim,
        )  # fmt: skip

    def plan(self, kernels: Kernels) -> AttentionMetadata:
        return kernels.plan_attention(
            torch.tensor([0, *self.query_lens]).cumsum(0).int(),
            torch.tensor(self.seq_lens, dtype=torch.int32),
            self.block_tables,
            block_size=self.block_size,
            num_kv_heads=self.kv_heads,
        )

    def run(self, kernels: Kernels, sliding_window: int = 0) -> tuple[Tensor, Tensor]:
        """Rotate, write and attend in the second layer. Return the output and the cache, with keys in rows."""
        panels = kernels.name == "cpu"
        cache, qkv = keys_to_panels(self.cache) if panels else self.cache.clone(), self.qkv.clone()
        sizes = [n * self.head_dim for n in (self.heads, self.kv_heads, self.kv_heads)]
        q, k, v = (part.view(len(qkv), -1, self.head_dim) for part in qkv.split(sizes, dim=1))
        meta = self.plan(kernels)
        kernels.rotary_and_write(q, k, v, self.cos_sin, cache[:, 1], meta)
        scale = self.head_dim**-0.5
        out = kernels.attention(q, cache[:, 1], meta, scale=scale, sliding_window=sliding_window)
        return out, keys_to_rows(cache) if panels else cache
