"""Paged attention in tiles at fixed positions: softmax online, one pass over the keys and values of each KV head.

Query rows are the new tokens of a sequence times the heads of one group. So the kernel reads keys and values once for
the whole group. Prefill and decode share one path.

A tile is ``KV_TILE`` positions. The kernel transposes the keys of a tile to fp32 scratch and reads the values in place.
It multiplies both with the register tiles of ``tiles``. Tiles start at multiples of ``KV_TILE``, and masked positions
add exact zeros. So the sums of a row depend on its position alone.
"""

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_kernels.cpu.attention_plan import END, ITEM_BYTES, KV_HEAD, SEQUENCE, TOKEN, TOKENS
from octavo_kernels.cpu.exponential import exp2
from octavo_kernels.cpu.instruction_set import TILE
from octavo_kernels.cpu.jit import jit
from octavo_kernels.cpu.linear import multiply_panel
from octavo_kernels.cpu.memory import F32, I32, I64, Floats, Tag, address, at, fma, item_size, load, prefetch, store
from octavo_kernels.cpu.pool import job, launch
from octavo_kernels.cpu.records import read_cache, read_step, reader, record
from octavo_kernels.cpu.reductions import LANES, maximum, weigh
from octavo_kernels.cpu.tiles import make_tile
from octavo_kernels.cpu.transpose import transpose

KV_TILE = 96  # a multiple of every panel's width
_WIDE = 4 if TILE.lanes == 16 else 2  # vectors in a tile of values, by the register file
_LOG2_E = np.float32(1.4426950408889634)
_MINUS_INFINITY = np.float32(-np.inf)
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_LANES, _WIDTH = TILE.lanes, TILE.width

_wide_1, _wide_2, _wide_3, _wide_6 = (make_tile(_LANES, rows, _WIDE) for rows in (1, 2, 3, 6))
_slim_1, _slim_6 = (make_tile(_LANES, rows, 1) for rows in (1, 6))


@record
class Queries(ctypes.Structure):
    """Queries of one layer, ``[T, heads, head_dim]``, the address of their output, and the parameters of the layer."""

    address: int
    stride: int  # bytes between tokens
    heads: int
    out: int  # [T, heads * head_dim], without gaps
    scale: float
    window: int  # positions, 0 for no window


_read_queries = reader(Queries)


@jit()
def _add_values(
    p: int, p_stride: int, rows: int, v: int, v_stride: int, k: int, head_dim: int, o: int, o_stride: int, v_tag: Tag
) -> None:
    """Compute ``o[rows, head_dim] += p[rows, k] @ v[k, head_dim]``.

    The sums follow the order of k, however a caller cuts k.
    """
    size, vectors = item_size(v_tag), head_dim // _LANES
    for r in range(rows if head_dim % _LANES else 0):
        weights, sums = at(p + r * p_stride, F32), at(o + r * o_stride, F32)
        for i in range(vectors * _LANES, head_dim):
            total = sums[i]
            for j in range(k):
                total = fma(weights[j], load(at(v + j * v_stride, v_tag), i), total)
            sums[i] = total
    while rows > 0:
        count = 6 if rows >= 6 else min(rows, 3)
        column = 0
        while column + _WIDE <= vectors:
            w, c = v + column * _LANES * size, o + column * _LANES * 4
            if count == 6:
                _wide_6(p, p_stride, w, v_stride, k, c, o_stride, c, o_stride, v_tag, F32)
            elif count == 3:
                _wide_3(p, p_stride, w, v_stride, k, c, o_stride, c, o_stride, v_tag, F32)
            elif count == 2:
                _wide_2(p, p_stride, w, v_stride, k, c, o_stride, c, o_stride, v_tag, F32)
            else:
                _wide_1(p, p_stride, w, v_stride, k, c, o_stride, c, o_stride, v_tag, F32)
            column += _WIDE
        while column < vectors:
            w, c = v + column * _LANES * size, o + column * _LANES * 4
            if count == 6:
                _slim_6(p, p_stride, w, v_stride, k, c, o_stride, c, o_stride, v_tag, F32)
            else:
                for r in range(count):
                    row = c + r * o_stride
                    _slim_1(p + r * p_stride, 0, w, v_stride, k, row, 0, row, 0, v_tag, F32)
            column += 1
        p += count * p_stride
        o += count * o_stride
        rows -= count


@jit()
def _load_queries(
    target: Floats,
    padded: int,
    q: int,
    q_stride: int,
    tokens: int,
    first_head: int,
    group: int,
    head_dim: int,
    scale: np.float32,
    tag: Tag,
) -> None:
    """Write scaled queries in fp32, ``[tokens * group, padded]``, with zeros after ``head_dim``."""
    size = item_size(tag)
    for t in range(tokens):
        for h in range(group):
            source = at(q + t * q_stride + (first_head + h) * head_dim * size, tag)
            row = (t * group + h) * padded
            for i in range(head_dim):
                target[row + i] = load(source, i) * scale
            for i in range(head_dim, padded):
                target[row + i] = _ZERO


@jit()
def _locate_keys(
    rows: NDArray[np.int64],
    kv: int,
    block_stride: int,
    table: Any,
    block_size: int,
    base: int,
    count: int,
    row_bytes: int,
    plane: int,
) -> None:
    """Fill ``rows`` with the addresses of the keys of ``count`` positions from ``base`` on.

    The last address fills the rest of ``rows``. Prefetches all cache lines of these keys and of their values, which lie
    ``plane`` bytes behind the keys. Blocks lie anywhere, so the processor does not foresee the next one.
    """
    done = 0
    while done < count:
        offset = (base + done) % block_size
        first = kv + np.int64(table[(base + done) // block_size]) * block_stride + offset * row_bytes
        run = min(count - done, block_size - offset)
        for j in range(run):
            rows[done + j] = first + j * row_bytes
        for line in range(0, run * row_bytes, 64):
            prefetch(first + line)
            prefetch(first + plane + line)
        done += run
    for j in range(count, KV_TILE):
        rows[j] = rows[count - 1]


@jit()
def _transpose_keys(keys: Floats, padded: int, rows: NDArray[np.int64], head_dim: int, count: int, tag: Tag) -> None:
    """Transpose the keys at the addresses ``rows`` to panels, with zeros after ``head_dim``.

    The panels are ``[KV_TILE / width, padded, width]``. Columns after ``count`` hold arbitrary values: their scores are
    masked.
    """
    size, target = item_size(tag), address(keys)
    whole = head_dim // _LANES * _LANES
    for j in range(0, count, _LANES):
        panel = target + ((j // _WIDTH) * padded * _WIDTH + j % _WIDTH) * 4
        for i in range(0, whole, _LANES):
            transpose(address(rows) + j * 8, i * size, panel + i * _WIDTH * 4, _WIDTH * 4, tag)
        column = (j // _WIDTH) * padded * _WIDTH + j % _WIDTH
        for c in range(_LANES):
            key = at(rows[j + c], tag)
            for i in range(whole, head_dim):
                keys[column + i * _WIDTH + c] = load(key, i)
            for i in range(head_dim, padded):
                keys[column + i * _WIDTH + c] = _ZERO


@jit()
def _to_weights(
    scores: Floats, first: int, end: int, highest: Floats, total: Floats, r: int, o: Floats, padded: int
) -> None:
    """Turn the scores of row ``r`` into weights, with 0 outside of ``first .. end - 1``.

    Rescales the previous sums of the row.
    """
    row = r * KV_TILE
    for j in range(max(end, 0), KV_TILE):
        scores[row + j] = _MINUS_INFINITY
    for j in range(min(first, KV_TILE)):
        scores[row + j] = _MINUS_INFINITY
    start, vectors = address(scores) + row * 4, KV_TILE // LANES
    top = max(highest[r], maximum(start, vectors))
    if top == _MINUS_INFINITY:
        for j in range(KV_TILE):
            scores[row + j] = _ZERO
        return
    added = weigh(start, vectors, top)
    if top > highest[r]:
        shrink = exp2(highest[r] - top)
        total[r] *= shrink
        for i in range(padded):
            o[r * padded + i] *= shrink
        highest[r] = top
    total[r] += added


@jit()
def _store_rows(
    out: int,
    heads: int,
    first_head: int,
    group: int,
    head_dim: int,
    tokens: int,
    o: Floats,
    total: Floats,
    padded: int,
    tag: Tag,
) -> None:
    size = item_size(tag)
    for t in range(tokens):
        for h in range(group):
            r = t * group + h
            target = at(out + (t * heads + first_head + h) * head_dim * size, tag)
            factor = _ONE / total[r]
            for i in range(head_dim):
                store(target, i, o[r * padded + i] * factor)


@jit()
def _attend_rows(
    queries: Floats,
    o: Floats,
    highest: Floats,
    total: Floats,
    rows: int,
    group: int,
    cache: int,
    head: int,
    table: Any,
    padded: int,
    first_position: int,
    end: int,
    window: int,
    tag: Tag,
) -> None:
    """Add the positions up to ``end - 1`` to the sums of ``rows`` query rows, a tile at a time."""
    layer = read_cache(cache)
    block_size, block_stride, head_dim = layer.block_size, layer.block_stride, layer.head_dim
    row_bytes = head_dim * item_size(tag)
    plane, first_key = layer.heads * block_size * row_bytes, layer.address + head * block_size * row_bytes
    scores, keys = np.empty(rows * KV_TILE, np.float32), np.empty(KV_TILE * padded, np.float32)
    key_rows, zeros = np.empty(KV_TILE, np.int64), np.zeros(_WIDTH, np.float32)
    seen = max(0, first_position + 1 - window) if window > 0 else 0
    for base in range(seen // KV_TILE * KV_TILE, end, KV_TILE):
        count = min(KV_TILE, end - base)
        _locate_keys(key_rows, first_key, block_stride, table, block_size, base, count, row_bytes, plane)
        _transpose_keys(keys, padded, key_rows, head_dim, count, tag)
        masked = max(0, base - first_position) * group  # rows before the tile
        left, padded_bytes = rows - masked, padded * 4
        for panel in range((count + _WIDTH - 1) // _WIDTH):
            multiply_panel(
                address(queries) + masked * padded_bytes, padded_bytes, left,
                address(keys) + panel * _WIDTH * padded_bytes, _WIDTH * 4, padded, address(zeros), 0,
                address(scores) + (masked * KV_TILE + panel * _WIDTH) * 4, KV_TILE * 4, F32, F32,
            )  # fmt: skip
        for r in range(masked, rows):
            position = first_position + r // group
            lowest = max(0, position + 1 - window) if window > 0 else 0
            _to_weights(scores, lowest - base, min(position + 1, end) - base, highest, total, r, o, padded)
        done = 0
        while done < count:
            run = min(count - done, block_size - (base + done) % block_size)
            _add_values(
                address(scores) + (masked * KV_TILE + done) * 4, KV_TILE * 4, left, key_rows[done] + plane, row_bytes,
                run, head_dim, address(o) + masked * padded_bytes, padded_bytes, tag,
            )  # fmt: skip
            done += run


@jit()
def _attend_item(queries: int, cache: int, step: int, tag: Tag, n: int) -> None:
    layer, asked, places = read_cache(cache), _read_queries(queries), read_step(step)
    heads, head_dim = asked.heads, layer.head_dim
    group, size = heads // layer.heads, item_size(tag)
    padded = (head_dim + LANES - 1) // LANES * LANES
    item = at(places.items + n * ITEM_BYTES, I64)
    head, first, tokens, end = item[KV_HEAD], item[TOKEN], item[TOKENS], item[END]
    table = at(places.block_tables + item[SEQUENCE] * places.table_stride, I32)
    position = at(places.positions, I64)[first]
    rows, first_head = tokens * group, head * group
    wide, o = np.empty(rows * padded, np.float32), np.zeros(rows * padded, np.float32)
    highest, total = np.full(rows, _MINUS_INFINITY), np.zeros(rows, np.float32)
    source, stride, factor = asked.address + first * asked.stride, asked.stride, np.float32(asked.scale) * _LOG2_E
    _load_queries(wide, padded, source, stride, tokens, first_head, group, head_dim, factor, tag)
    _attend_rows(wide, o, highest, total, rows, group, cache, head, table, padded, position, end, asked.window, tag)
    target = asked.out + first * heads * head_dim * size
    _store_rows(target, heads, first_head, group, head_dim, tokens, o, total, padded, tag)


@jit()
def attend(pool: int, queries: int, cache: int, step: int, tag: Tag) -> None:
    """Compute all items of a step for one layer.

    The arguments are the addresses of records: ``Queries``, ``CacheLayer`` and ``StepPlaces``.
    """
    launch(pool, read_step(step).num_items, job(_attend_item, (queries, cache, step, tag)))
