"""How a step's attention is divided among threads: once per step, for all layers.

A sequence with one new token is *decode*: one item for each KV head, cut along the KV length where that balances the
threads. Any other is *prefill*: an item for each KV head and run of ``QUERY_TOKENS`` tokens. Threads take the largest
item that is left. A batch-invariant plan makes all items prefill, whose order of sums
depends on positions alone, and cuts none.
"""

from dataclasses import dataclass

import numpy as np

from octavo_kernels.cpu.jit import jit

QUERY_TOKENS = 32
MIN_SPLIT = 128  # positions: below this the merge costs more than the balance brings
_FIELDS = 7
SEQUENCE, KV_HEAD, TOKEN, TOKENS, BEGIN, END, PARTIAL = range(_FIELDS)
ITEM_BYTES, MERGE_BYTES = _FIELDS * 8, 5 * 8
WHOLE, PREFILL = -1, -2  # in PARTIAL: a decode that was not cut; no decode


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """Items ``int64 [n, 7]``, the largest last, as the pool runs the last chunk first.

    ``merges`` lists (sequence, KV head, token, first partial, partials) of the decodes that were cut.
    """

    items: np.ndarray
    merges: np.ndarray
    num_partials: int
    items_address: int
    merges_address: int


@jit()
def locate(query_start_loc, seq_lens, block_tables, block_size, positions, slots):
    """Positions and slots of the step's tokens. A sequence's tokens are its last ones."""
    for i in range(len(seq_lens)):
        first = query_start_loc[i]
        shift = seq_lens[i] - query_start_loc[i + 1]
        for token in range(first, query_start_loc[i + 1]):
            position = token + shift
            positions[token] = position
            slots[token] = np.int64(block_tables[i, position // block_size]) * block_size + position % block_size


@jit()
def _cost(tokens, begin, end):
    """In decoded positions of one KV head. A prefilled token costs less for each position: the keys stay in cache."""
    if tokens == 1:
        return np.float64(end - begin + 16)
    return tokens * (end - 0.5 * tokens) * 0.4 + 1.5 * end + 16.0


@jit()
def _divide(query_start_loc, seq_lens, kv_heads, threads, decode_tokens):
    """Items in the order of sequences, and the merges: see ``AttentionWork``."""
    total = 0.0
    for i in range(len(seq_lens)):
        total += _cost(query_start_loc[i + 1] - query_start_loc[i], 0, seq_lens[i]) * kv_heads
    largest = total / threads / 2
    items, merges, partials = [], [], 0
    for i in range(len(seq_lens)):
        first, length = np.int64(query_start_loc[i]), np.int64(seq_lens[i])
        tokens = np.int64(query_start_loc[i + 1]) - first
        if tokens == decode_tokens:
            pieces = max(1, min(np.int64(np.ceil(length / largest)), length // MIN_SPLIT))
            for head in range(kv_heads):
                if pieces > 1:
                    merges.append((i, head, first, partials, pieces))
                for piece in range(pieces):
                    begin, end = piece * length // pieces, (piece + 1) * length // pieces
                    partial = partials + piece if pieces > 1 else WHOLE
                    items.append((i, head, first, 1, begin, end, partial))
                partials += pieces if pieces > 1 else 0
        else:
            for offset in range(0, tokens, QUERY_TOKENS):
                count = min(QUERY_TOKENS, tokens - offset)
                end = length - tokens + offset + count
                for head in range(kv_heads):
                    items.append((i, head, first + offset, count, 0, end, PREFILL))
    item_array = np.empty((len(items), _FIELDS), np.int64)
    for n in range(len(items)):
        for field, value in enumerate(items[n]):
            item_array[n, field] = value
    merge_array = np.empty((len(merges), 5), np.int64)
    for n in range(len(merges)):
        for field, value in enumerate(merges[n]):
            merge_array[n, field] = value
    return item_array, merge_array, partials


@jit()
def _by_cost(items):
    costs = np.empty(len(items))
    for n in range(len(items)):
        costs[n] = _cost(items[n, TOKENS], items[n, BEGIN], items[n, END])
    return items[np.argsort(costs)]


def plan_work(
    query_start_loc: np.ndarray, seq_lens: np.ndarray, kv_heads: int, threads: int, *, batch_invariant: bool
) -> AttentionWork:
    """Divides a step; arrays are int32, as in ``AttentionMetadata``."""
    decode_tokens = -1 if batch_invariant else 1
    items, merges, partials = _divide(query_start_loc, seq_lens, kv_heads, threads, decode_tokens)
    items = _by_cost(items)
    return AttentionWork(items, merges, partials, items.ctypes.data, merges.ctypes.data)
