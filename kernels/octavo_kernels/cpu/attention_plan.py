"""The division of a step's attention among threads: once per step, for all layers.

An item is one KV head of one sequence and a run of at most ``QUERY_TOKENS`` of its new tokens. No item is cut along its
positions, so the load never changes an order of sums. Threads take the largest item that is left.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_kernels.cpu.jit import jit
from octavo_kernels.cpu.records import StepPlaces
from octavo_kernels.interface import AttentionMetadata

Shorts: TypeAlias = NDArray[np.int32]
Longs: TypeAlias = NDArray[np.int64]

QUERY_TOKENS = 32
_FIELDS = 5
SEQUENCE, KV_HEAD, TOKEN, TOKENS, END = range(_FIELDS)
ITEM_BYTES = _FIELDS * 8


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """Items ``int64 [n, 5]``, the largest last, because the pool runs the last chunk first, and all addresses."""

    items: Longs
    places: StepPlaces


@jit()
def locate(
    query_start_loc: Shorts, seq_lens: Shorts, block_tables: Shorts, block_size: int, positions: Longs, slots: Longs
) -> None:
    """Compute positions and slots of the step's tokens, which are the last ones of their sequences."""
    for i in range(len(seq_lens)):
        first = query_start_loc[i]
        shift = seq_lens[i] - query_start_loc[i + 1]
        for token in range(first, query_start_loc[i + 1]):
            position = token + shift
            positions[token] = position
            slots[token] = np.int64(block_tables[i, position // block_size]) * block_size + position % block_size


@jit()
def _divide(query_start_loc: Shorts, seq_lens: Shorts, kv_heads: int) -> Longs:
    """Return the items in the order of sequences: see ``AttentionWork``."""
    count = 0
    for i in range(len(seq_lens)):
        count += kv_heads * ((query_start_loc[i + 1] - query_start_loc[i] + QUERY_TOKENS - 1) // QUERY_TOKENS)
    items, n = np.empty((count, _FIELDS), np.int64), 0
    for i in range(len(seq_lens)):
        first, length = np.int64(query_start_loc[i]), np.int64(seq_lens[i])
        tokens: Any = np.int64(query_start_loc[i + 1]) - first
        for offset in range(0, tokens, QUERY_TOKENS):
            run = min(QUERY_TOKENS, tokens - offset)
            for head in range(kv_heads):
                items[n, SEQUENCE], items[n, KV_HEAD] = i, head
                items[n, TOKEN], items[n, TOKENS] = first + offset, run
                items[n, END] = length - tokens + offset + run
                n += 1
    return items


@jit()
def _by_cost(items: Longs) -> Longs:
    """Sort items by their cost: products for each token and position, and one reading of each position."""
    costs = np.empty(len(items))
    for n in range(len(items)):
        tokens, end = items[n, TOKENS], items[n, END]
        costs[n] = tokens * (end - 0.5 * tokens) * 0.4 + 1.5 * end
    return items[np.argsort(costs)]


def plan_step(
    query_start_loc: Tensor, seq_lens: Tensor, block_tables: Tensor, *, block_size: int, num_kv_heads: int
) -> AttentionMetadata:
    """Locate the step's tokens and divide their attention; tensors are int32, as in ``AttentionMetadata``."""
    starts, lens = query_start_loc.numpy(), seq_lens.numpy()
    positions = torch.empty(int(starts[-1]), dtype=torch.int64)
    slots = torch.empty_like(positions)
    locate(starts, lens, block_tables.numpy(), block_size, positions.numpy(), slots.numpy())
    items = _by_cost(_divide(starts, lens, num_kv_heads))
    places = StepPlaces(
        block_tables=block_tables.data_ptr(),
        table_stride=block_tables.stride(0) * block_tables.element_size(),
        positions=positions.data_ptr(),
        slots=slots.data_ptr(),
        num_tokens=len(positions),
        items=items.ctypes.data,
        num_items=len(items),
    )
    return AttentionMetadata(query_start_loc, seq_lens, positions, slots, block_tables, AttentionWork(items, places))
