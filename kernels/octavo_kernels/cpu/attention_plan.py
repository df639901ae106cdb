"""The division of a step's attention among threads: once per step, for all layers.

An item is one KV head of one sequence and a run of at most ``QUERY_TOKENS`` of its new tokens. An item that exceeds its
share of the step is cut at multiples of ``PART_POSITIONS``. The kernel computes by parts in any case, so a cut never
changes an order of sums. Threads take the largest item that is left.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_kernels.cpu.jit import inline, jit
from octavo_kernels.cpu.records import StepPlaces
from octavo_kernels.interface import AttentionMetadata

Shorts: TypeAlias = NDArray[np.int32]
Longs: TypeAlias = NDArray[np.int64]

QUERY_TOKENS = 32
PART_POSITIONS = 512
_FIELDS, _JOIN_FIELDS = 7, 5
KV_HEAD, TOKEN, TOKENS, SEQUENCE, BEGIN, END, PART = range(_FIELDS)
FIRST_PART, PARTS = 3, 4  # of a join, after KV_HEAD, TOKEN and TOKENS
ITEM_BYTES, JOIN_BYTES = _FIELDS * 8, _JOIN_FIELDS * 8


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """Items ``int64 [n, 7]``, joins of cut items ``int64 [m, 5]``, and all addresses.

    The largest item is the last one, because the pool runs the last chunk first. ``PART`` is -1 for a whole item, else
    the index of its first part: a part has an index for each token. ``part_tokens`` is the number of indices.
    """

    items: Longs
    joins: Longs
    part_tokens: int
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
    """Return whole items in the order of sequences."""
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
                items[n, BEGIN], items[n, END], items[n, PART] = 0, length - tokens + offset + run, -1
                n += 1
    return items


@inline
def _cost(tokens: int, positions: int) -> Any:
    """Estimate the time of an item: products for each token and position, and one reading of each position."""
    return tokens * max(positions - 0.5 * tokens, 0.5 * positions) * 0.4 + 1.5 * positions


@inline
def _parts_per_piece(item: Longs, limit: float) -> Any:
    """Return how many parts of an item fit ``limit``, at least one."""
    parts = (item[END] + PART_POSITIONS - 1) // PART_POSITIONS
    pieces = np.int64(np.ceil(_cost(item[TOKENS], item[END]) / limit))
    return max(1, parts // max(1, pieces))


@jit()
def _cut(items: Longs, limit: float) -> tuple[Longs, Longs, int]:
    """Cut each item whose cost exceeds ``limit``; return items, joins and the number of indices of parts."""
    count = num_joins = 0
    for n in range(len(items)):
        parts = (items[n, END] + PART_POSITIONS - 1) // PART_POSITIONS
        per_piece = _parts_per_piece(items[n], limit)
        count += (parts + per_piece - 1) // per_piece
        num_joins += per_piece < parts
    pieces, joins = np.empty((count, _FIELDS), np.int64), np.empty((num_joins, _JOIN_FIELDS), np.int64)
    count = num_joins = part_tokens = 0
    for n in range(len(items)):
        tokens, parts = items[n, TOKENS], (items[n, END] + PART_POSITIONS - 1) // PART_POSITIONS
        per_piece = _parts_per_piece(items[n], limit)
        if per_piece >= parts:
            pieces[count] = items[n]
            count += 1
            continue
        joins[num_joins, :FIRST_PART] = items[n, :FIRST_PART]
        joins[num_joins, FIRST_PART], joins[num_joins, PARTS] = part_tokens, parts
        num_joins += 1
        for first in range(0, parts, per_piece):
            pieces[count] = items[n]
            pieces[count, BEGIN] = first * PART_POSITIONS
            pieces[count, END] = min((first + per_piece) * PART_POSITIONS, items[n, END])
            pieces[count, PART] = part_tokens + first * tokens
            count += 1
        part_tokens += parts * tokens
    return pieces, joins, part_tokens


@jit()
def _costs(items: Longs) -> NDArray[np.float64]:
    costs = np.empty(len(items))
    for n in range(len(items)):
        costs[n] = _cost(items[n, TOKENS], items[n, END] - items[n, BEGIN])
    return costs


@jit()
def _divide_and_cut(query_start_loc: Shorts, seq_lens: Shorts, kv_heads: int, threads: int) -> tuple[Longs, Longs, int]:
    """Return items by cost, joins, and the number of indices of parts: see ``AttentionWork``."""
    items = _divide(query_start_loc, seq_lens, kv_heads)
    limit = _costs(items).sum() / (2 * threads) if threads > 1 else np.inf
    items, joins, part_tokens = _cut(items, limit)
    return items[np.argsort(_costs(items))], joins, part_tokens


def plan_step(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_tables: Tensor,
    *,
    block_size: int,
    num_kv_heads: int,
    threads: int,
) -> AttentionMetadata:
    """Locate the step's tokens and divide their attention; tensors are int32, as in ``AttentionMetadata``."""
    starts, lens = query_start_loc.numpy(), seq_lens.numpy()
    positions = torch.empty(int(starts[-1]), dtype=torch.int64)
    slots = torch.empty_like(positions)
    locate(starts, lens, block_tables.numpy(), block_size, positions.numpy(), slots.numpy())
    items, joins, part_tokens = _divide_and_cut(starts, lens, num_kv_heads, threads)
    places = StepPlaces(
        block_tables=block_tables.data_ptr(),
        table_stride=block_tables.stride(0) * block_tables.element_size(),
        positions=positions.data_ptr(),
        slots=slots.data_ptr(),
        num_tokens=len(positions),
        items=items.ctypes.data,
        num_items=len(items),
        joins=joins.ctypes.data,
        num_joins=len(joins),
    )
    work = AttentionWork(items, joins, part_tokens, places)
    return AttentionMetadata(query_start_loc, seq_lens, positions, slots, block_tables, work)
