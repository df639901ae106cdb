"""Paged attention over keys in panels and values in rows: softmax online, in tiles and parts at fixed positions.

Query rows are the new tokens of a sequence times the heads of one group. So the kernel reads keys and values once for
the whole group. Prefill and decode share one path.

A tile is ``KV_TILE`` positions: scores, weights, then the sum of weighted values. A part is ``PART_POSITIONS``
positions. Each part starts with empty sums, and the parts of a row are joined in their order. So the sums of a row
depend on its position alone, and threads may share the parts of a long sequence (flash decoding,
https://pytorch.org/blog/flash-decoding/).

The state of a row is ``[padded + 2]`` floats: sums of values, the largest score, the sum of weights. A row that has
seen no position has the sum of weights 0.
"""

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_kernels.cpu import attention_plan as plan
from octavo_kernels.cpu.attention_plan import ITEM_BYTES, JOIN_BYTES, PART_POSITIONS
from octavo_kernels.cpu.attention_tiles import PANEL, make_scores, make_values
from octavo_kernels.cpu.exponential import exp2
from octavo_kernels.cpu.instruction_set import TILE
from octavo_kernels.cpu.jit import jit
from octavo_kernels.cpu.memory import F32, I32, I64, Floats, Tag, address, at, fma, item_size, load, prefetch, store
from octavo_kernels.cpu.pool import job, launch
from octavo_kernels.cpu.records import read_cache, read_step, reader, record
from octavo_kernels.cpu.reductions import LANES, maximum, weigh

KV_TILE = 128
_PANELS = KV_TILE // PANEL
_VECTOR = TILE.lanes
_LOG2_E = np.float32(1.4426950408889634)
_MINUS_INFINITY = np.float32(-np.inf)
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)

# Rows of the largest tile, panels in a tile of scores by rows, vectors in a tile of values by rows: accumulators, one
# operand and one broadcast fill the register file. Few rows take more panels, to hide the latency of an addition.
_FULL, _PANELS_OF, _VECTORS_OF = {
    16: (6, {6: 4, 3: 4, 2: 4, 1: 8}, {6: 4, 3: 4, 2: 4, 1: 4}),
    8: (6, {6: 1, 3: 2, 2: 2, 1: 4}, {6: 2, 3: 4, 2: 4, 1: 8}),
    4: (3, {3: 1, 2: 1, 1: 2}, {3: 4, 2: 4, 1: 8}),
}[TILE.lanes]
_SLIM = LANES // TILE.lanes  # vectors of 16 dimensions
_PANELS_FULL, _PANELS_3, _PANELS_2, _PANELS_1 = (_PANELS_OF[rows] for rows in (_FULL, 3, 2, 1))
_scores_full, _scores_3, _scores_2, _scores_1 = (
    make_scores(TILE.lanes, rows, _PANELS_OF[rows]) for rows in (_FULL, 3, 2, 1)
)
_WIDE_FULL, _WIDE_3, _WIDE_2, _WIDE_1 = (_VECTORS_OF[rows] for rows in (_FULL, 3, 2, 1))
_wide_full, _wide_3, _wide_2, _wide_1 = (make_values(TILE.lanes, rows, _VECTORS_OF[rows]) for rows in (_FULL, 3, 2, 1))
_slim_full, _slim_1 = (make_values(TILE.lanes, rows, _SLIM) for rows in (_FULL, 1))


@record
class Queries(ctypes.Structure):
    """Queries of one layer, ``[T, heads, head_dim]``, the address of their output, and the parameters of the layer."""

    address: int
    stride: int  # bytes between tokens
    heads: int
    out: int  # [T, heads * head_dim], without gaps
    scale: float
    window: int  # positions, 0 for no window
    parts: int  # float32 [part_floats], states of the rows of cut sequences


_read_queries = reader(Queries)


def part_floats(part_tokens: int, group: int, head_dim: int) -> int:
    """Return the size of ``Queries.parts`` for ``group`` query heads of each KV head."""
    return part_tokens * group * (-(-head_dim // LANES) * LANES + 2)


@jit()
def _score(
    q: int, q_stride: int, rows: int, keys: int, panels: int, plane: int, head_dim: int, scores: int, tag: Tag
) -> None:
    """Compute ``scores [rows, KV_TILE]`` of ``panels`` panels. The rest of the last register tile is arbitrary."""
    stride, full = KV_TILE * 4, rows // _FULL * _FULL
    for panel in range(0, panels if full > 0 else 0, _PANELS_FULL):
        k, c = keys + panel * 8, scores + panel * PANEL * 4
        for r in range(0, full, _FULL):
            _scores_full(q + r * q_stride, q_stride, k, plane, head_dim, c + r * stride, stride, tag)
    q, c, rows = q + full * q_stride, scores + full * stride, rows - full
    while rows > 0:
        if rows >= 3:
            for p in range(0, panels, _PANELS_3):
                _scores_3(q, q_stride, keys + p * 8, plane, head_dim, c + p * PANEL * 4, stride, tag)
        elif rows == 2:
            for p in range(0, panels, _PANELS_2):
                _scores_2(q, q_stride, keys + p * 8, plane, head_dim, c + p * PANEL * 4, stride, tag)
        else:
            for p in range(0, panels, _PANELS_1):
                _scores_1(q, q_stride, keys + p * 8, plane, head_dim, c + p * PANEL * 4, stride, tag)
        done = min(rows, 3)
        q, c, rows = q + done * q_stride, c + done * stride, rows - done


@jit()
def _add_values(
    weights: int,
    rows: int,
    keys: int,
    next_keys: int,
    plane: int,
    head_dim: int,
    count: int,
    o: int,
    o_stride: int,
    tag: Tag,
) -> None:
    """Add the weighted values of ``count`` positions to ``o [rows, head_dim]``.

    ``weights`` is ``[rows, KV_TILE]``. The sums follow the order of positions.
    """
    size, stride, row_bytes = item_size(tag), KV_TILE * 4, head_dim * item_size(tag)
    vectors, p = head_dim // LANES * LANES // _VECTOR, weights
    while rows > 0:
        done = _FULL if rows >= _FULL else min(rows, 3)
        wide = _WIDE_FULL if done == _FULL else _WIDE_3 if done == 3 else _WIDE_2 if done == 2 else _WIDE_1
        column = 0
        while column + wide <= vectors:
            w, c = column * _VECTOR * size, o + column * _VECTOR * 4
            if done == _FULL:
                _wide_full(p, stride, keys, plane, next_keys, w, row_bytes, count, c, o_stride, tag)
            elif done == 3:
                _wide_3(p, stride, keys, plane, next_keys, w, row_bytes, count, c, o_stride, tag)
            elif done == 2:
                _wide_2(p, stride, keys, plane, next_keys, w, row_bytes, count, c, o_stride, tag)
            else:
                _wide_1(p, stride, keys, plane, next_keys, w, row_bytes, count, c, o_stride, tag)
            column += wide
        while column < vectors:
            w, c = column * _VECTOR * size, o + column * _VECTOR * 4
            if done == _FULL:
                _slim_full(p, stride, keys, plane, next_keys, w, row_bytes, count, c, o_stride, tag)
            else:
                for r in range(done):
                    x, row = p + r * stride, c + r * o_stride
                    _slim_1(x, 0, keys, plane, next_keys, w, row_bytes, count, row, 0, tag)
            column += _SLIM
        p, o, rows = p + done * stride, o + done * o_stride, rows - done


@jit()
def _add_last_dimensions(
    weights: int, rows: int, keys: int, plane: int, head_dim: int, count: int, o: int, o_stride: int, tag: Tag
) -> None:
    """Do the work of ``_add_values`` for the dimensions after the last 16."""
    panels, row_bytes = at(keys, I64), head_dim * item_size(tag)
    for r in range(rows):
        line, sums = at(weights + r * KV_TILE * 4, F32), at(o + r * o_stride, F32)
        for i in range(head_dim // LANES * LANES, head_dim):
            total = sums[i]
            for j in range(count):
                row = at(panels[j // PANEL] + plane + j % PANEL * row_bytes, tag)
                total = fma(line[j], load(row, i), total)
            sums[i] = total


@jit()
def _load_queries(
    target: Floats,
    q: int,
    q_stride: int,
    tokens: int,
    first_head: int,
    group: int,
    head_dim: int,
    scale: np.float32,
    tag: Tag,
) -> None:
    """Write scaled queries in fp32, ``[tokens * group, head_dim]``."""
    size = item_size(tag)
    for t in range(tokens):
        for h in range(group):
            source = at(q + t * q_stride + (first_head + h) * head_dim * size, tag)
            row = (t * group + h) * head_dim
            for i in range(head_dim):
                target[row + i] = load(source, i) * scale


@jit()
def _locate_panels(
    panels: int, first_key: int, block_stride: int, table: Any, block_size: int, base: int, end: int, panel_bytes: int
) -> None:
    """Write the addresses of the panels of a tile from the position ``base`` on; the last one fills the rest."""
    target, last = at(panels, I64), (end - 1 - base) // PANEL
    for n in range(_PANELS):
        position = base + min(n, last) * PANEL
        block = first_key + np.int64(table[position // block_size]) * block_stride
        target[n] = block + position % block_size // PANEL * panel_bytes


@jit()
def _to_weights(scores: int, first: int, end: int, state: Any, padded: int) -> None:
    """Turn a row of scores into weights, with 0 outside of ``first .. end - 1``. Rescale the row's earlier sums.

    NaN in a visible score makes the row's sum of weights NaN.
    """
    row, first, end = at(scores, F32), max(first, 0), min(end, KV_TILE)
    if first >= end:
        for j in range(KV_TILE):
            row[j] = _ZERO
        return
    for j in range(end, KV_TILE):
        row[j] = _MINUS_INFINITY
    for j in range(first):
        row[j] = _MINUS_INFINITY
    highest = state[padded]
    top = max(highest, maximum(scores, KV_TILE // LANES))
    added = weigh(scores, KV_TILE // LANES, top)
    if top > highest:
        shrink = exp2(highest - top)
        for i in range(padded):
            state[i] *= shrink
        state[padded] = top
        state[padded + 1] *= shrink
    state[padded + 1] += added


@jit()
def _start_rows(states: int, rows: int, padded: int) -> None:
    for r in range(rows):
        state = at(states + r * (padded + 2) * 4, F32)
        for i in range(padded + 2):
            state[i] = _ZERO
        state[padded] = _MINUS_INFINITY


@jit()
def _join_row(target: int, part: int, padded: int) -> None:
    """Add the state of the next part to the state of a row."""
    sums, added = at(target, F32), at(part, F32)
    if added[padded + 1] == _ZERO:
        return
    if sums[padded + 1] == _ZERO:
        for i in range(padded + 2):
            sums[i] = added[i]
        return
    top = max(sums[padded], added[padded])
    keep, add = exp2(sums[padded] - top), exp2(added[padded] - top)
    for i in range(padded):
        sums[i] = fma(added[i], add, sums[i] * keep)
    sums[padded] = top
    sums[padded + 1] = fma(added[padded + 1], add, sums[padded + 1] * keep)


@jit()
def _store_rows(
    out: int, heads: int, first_head: int, group: int, head_dim: int, tokens: int, states: int, padded: int, tag: Tag
) -> None:
    size = item_size(tag)
    for t in range(tokens):
        for h in range(group):
            state = at(states + (t * group + h) * (padded + 2) * 4, F32)
            target = at(out + (t * heads + first_head + h) * head_dim * size, tag)
            factor = _ONE / state[padded + 1]
            for i in range(head_dim):
                store(target, i, state[i] * factor)


@jit()
def _attend_part(
    queries: int,
    states: int,
    scores: int,
    panels: NDArray[np.int64],
    rows: int,
    group: int,
    cache: int,
    head: int,
    table: Any,
    position: int,
    begin: int,
    end: int,
    window: int,
    tag: Tag,
) -> None:
    """Add the positions ``begin .. end - 1`` to the states of ``rows`` query rows, a tile at a time.

    ``position`` is that of the first row.
    """
    layer = read_cache(cache)
    block_size, block_stride, head_dim = layer.block_size, layer.block_stride, layer.head_dim
    padded, row_bytes = (head_dim + LANES - 1) // LANES * LANES, head_dim * item_size(tag)
    plane, first_key = layer.heads * block_size * row_bytes, layer.address + head * block_size * row_bytes
    panel_bytes, state_bytes = PANEL * row_bytes, (padded + 2) * 4
    keys = address(panels)
    next_keys = keys + _PANELS * 8
    for base in range(begin, end, KV_TILE):
        count = min(KV_TILE, end - base)
        ahead = base + KV_TILE if base + KV_TILE < end else base
        _locate_panels(next_keys, first_key, block_stride, table, block_size, ahead, end, panel_bytes)
        if base == begin:
            _locate_panels(keys, first_key, block_stride, table, block_size, base, end, panel_bytes)
            for n in range((count + PANEL - 1) // PANEL):
                for line in range(0, panel_bytes, 64):
                    prefetch(panels[n] + line)
        masked = max(0, base - position) * group  # rows before the tile
        left, used = rows - masked, (count + PANEL - 1) // PANEL
        q, first_state, first_row = queries + masked * head_dim * 4, states + masked * state_bytes, masked * KV_TILE * 4
        _score(q, head_dim * 4, left, keys, used, plane, head_dim, scores + first_row, tag)
        for r in range(masked, rows):
            last = position + r // group
            lowest = max(0, last + 1 - window) if window > 0 else 0
            state = at(states + r * state_bytes, F32)
            _to_weights(scores + r * KV_TILE * 4, lowest - base, min(last + 1, end) - base, state, padded)
        weights = scores + first_row
        _add_values(weights, left, keys, next_keys, plane, head_dim, count, first_state, state_bytes, tag)
        if head_dim % LANES > 0:
            _add_last_dimensions(weights, left, keys, plane, head_dim, count, first_state, state_bytes, tag)
        for n in range(_PANELS):
            panels[n] = panels[_PANELS + n]


@jit()
def _attend_item(queries: int, cache: int, step: int, tag: Tag, n: int) -> None:
    """Compute one item: the output of its rows, or the states of its parts if its sequence is cut."""
    layer, asked, places = read_cache(cache), _read_queries(queries), read_step(step)
    heads, head_dim, window = asked.heads, layer.head_dim, asked.window
    group = heads // layer.heads
    padded = (head_dim + LANES - 1) // LANES * LANES
    item = at(places.items + n * ITEM_BYTES, I64)
    head, first, tokens, end = item[plan.KV_HEAD], item[plan.TOKEN], item[plan.TOKENS], item[plan.END]
    table = at(places.block_tables + item[plan.SEQUENCE] * places.table_stride, I32)
    position = at(places.positions, I64)[first]
    rows, first_head, state_bytes = tokens * group, head * group, (padded + 2) * 4
    q, scores = np.empty(rows * head_dim, np.float32), np.empty(rows * KV_TILE, np.float32)
    panels, states = np.empty(2 * _PANELS, np.int64), np.empty(2 * rows * (padded + 2), np.float32)
    source, stride, factor = asked.address + first * asked.stride, asked.stride, np.float32(asked.scale) * _LOG2_E
    _load_queries(q, source, stride, tokens, first_head, group, head_dim, factor, tag)
    seen = max(0, position + 1 - window) // KV_TILE * KV_TILE if window > 0 else 0
    cut, one = item[plan.PART] >= 0, address(states)
    start = item[plan.BEGIN] if cut else seen // PART_POSITIONS * PART_POSITIONS
    part = asked.parts + item[plan.PART] * group * state_bytes if cut else one
    for begin in range(start, end, PART_POSITIONS):
        last = min(begin + PART_POSITIONS, end)
        _start_rows(part, rows, padded)
        _attend_part(
            address(q), part, address(scores), panels, rows, group, cache, head, table, position, max(begin, seen),
            last, window, tag,
        )  # fmt: skip
        if cut:
            part += rows * state_bytes
        elif begin > start:
            for r in range(rows):
                _join_row(one + r * state_bytes, part + r * state_bytes, padded)
        else:
            part = one + rows * state_bytes
    if not cut:
        target = asked.out + first * heads * head_dim * item_size(tag)
        _store_rows(target, heads, first_head, group, head_dim, tokens, address(states), padded, tag)


@jit()
def _join_parts(queries: int, cache: int, step: int, tag: Tag, n: int) -> None:
    """Join the parts of one cut item in their order, and store the output of its rows."""
    layer, asked, places = read_cache(cache), _read_queries(queries), read_step(step)
    heads, head_dim = asked.heads, layer.head_dim
    group, padded = heads // layer.heads, (head_dim + LANES - 1) // LANES * LANES
    item = at(places.joins + n * JOIN_BYTES, I64)
    head, first, tokens = item[plan.KV_HEAD], item[plan.TOKEN], item[plan.TOKENS]
    rows, state_bytes = tokens * group, (padded + 2) * 4
    states = asked.parts + item[plan.FIRST_PART] * group * state_bytes
    for part in range(1, item[plan.PARTS]):
        for r in range(rows):
            _join_row(states + r * state_bytes, states + (part * rows + r) * state_bytes, padded)
    target = asked.out + first * heads * head_dim * item_size(tag)
    _store_rows(target, heads, head * group, group, head_dim, tokens, states, padded, tag)


@jit()
def attend(pool: int, queries: int, cache: int, step: int, tag: Tag) -> None:
    """Compute all items of a step for one layer.

    The arguments are the addresses of records: ``Queries``, ``CacheLayer`` and ``StepPlaces``.
    """
    places = read_step(step)
    launch(pool, places.num_items, job(_attend_item, (queries, cache, step, tag)))
    if places.num_joins > 0:
        launch(pool, places.num_joins, job(_join_parts, (queries, cache, step, tag)))
