"""Paged attention in tiles of fixed places: softmax online, one pass over the keys and values of each KV head.

Query rows are the new tokens of a sequence times the heads of one group, so that keys and values are read once for
the group. *Prefill* copies a tile of ``KV_TILE`` positions to fp32 scratch, keys transposed, and multiplies with the
register tiles of ``tiles``. Tiles start at multiples of ``KV_TILE`` and what a row must not see adds exact zeros, so a
row's sums depend on its position alone. *Decode* reads keys and values where they lie.
"""

import numpy as np

from octavo_kernels.cpu.attention_plan import (
    BEGIN,
    END,
    ITEM_BYTES,
    KV_HEAD,
    MERGE_BYTES,
    PARTIAL,
    PREFILL,
    SEQUENCE,
    TOKEN,
    TOKENS,
)
from octavo_kernels.cpu.dots import make_dot
from octavo_kernels.cpu.exponential import exp2
from octavo_kernels.cpu.jit import jit
from octavo_kernels.cpu.linear import SHAPE, multiply_panel
from octavo_kernels.cpu.memory import F32, address, at, item_size, load, store
from octavo_kernels.cpu.pool import job, launch
from octavo_kernels.cpu.softmax import make_maximum, make_weigh
from octavo_kernels.cpu.tiles import make_tile

KV_TILE = 96
DECODE_SPAN = 128
_LANES, _WIDTH = SHAPE.lanes, SHAPE.width
_LOG2_E = np.float32(1.4426950408889634)
_MINUS_INFINITY = np.float32(-np.inf)
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)

_wide_1, _wide_2, _wide_3, _wide_6 = (make_tile(_LANES, rows, 4) for rows in (1, 2, 3, 6))
_slim_1, _slim_6 = (make_tile(_LANES, rows, 1) for rows in (1, 6))
_maximum, _weigh = make_maximum(_LANES), make_weigh(_LANES)
_dot_1, _dot_2, _dot_3, _dot_4 = (make_dot(_LANES, rows) for rows in (1, 2, 3, 4))


@jit()
def _add_values(p, p_stride, rows, v, v_stride, k, o, o_stride, vectors, v_tag):
    """``o[rows, vectors * lanes] += p[rows, k] @ v[k, :]``."""
    size = item_size(v_tag)
    while rows > 0:
        count = 6 if rows >= 6 else min(rows, 3)
        column = 0
        while column + 4 <= vectors:
            w, c = v + column * _LANES * size, o + column * _LANES * 4
            if count == 6:
                _wide_6(p, p_stride, w, v_stride, k, c, o_stride, c, o_stride, v_tag, F32)
            elif count == 3:
                _wide_3(p, p_stride, w, v_stride, k, c, o_stride, c, o_stride, v_tag, F32)
            elif count == 2:
                _wide_2(p, p_stride, w, v_stride, k, c, o_stride, c, o_stride, v_tag, F32)
            else:
                _wide_1(p, p_stride, w, v_stride, k, c, o_stride, c, o_stride, v_tag, F32)
            column += 4
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
def _score_keys(q, q_stride, rows, k, k_stride, count, vectors, s, s_stride, k_tag):
    """``s[rows, count] = q[rows, :] . k[count, :]``."""
    while rows >= 4:
        _dot_4(q, q_stride, k, k_stride, count, vectors, s, s_stride, k_tag)
        q += 4 * q_stride
        s += 4 * s_stride
        rows -= 4
    if rows == 3:
        _dot_3(q, q_stride, k, k_stride, count, vectors, s, s_stride, k_tag)
    elif rows == 2:
        _dot_2(q, q_stride, k, k_stride, count, vectors, s, s_stride, k_tag)
    elif rows == 1:
        _dot_1(q, q_stride, k, k_stride, count, vectors, s, s_stride, k_tag)


@jit()
def _load_queries(target, padded, q, q_stride, tokens, first_head, group, head_dim, scale, tag):
    """Scaled queries in fp32, ``[tokens * group, padded]``, with zeros after ``head_dim``."""
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
def _gather_tile(
    keys, values, padded, kv, block_stride, table, head, kv_heads, block_size, head_dim, base, count, tag,
):  # fmt: skip
    """A tile's keys in panels ``[KV_TILE / width, padded, width]``, its values ``[KV_TILE, padded]``."""
    size = item_size(tag)
    plane = kv_heads * block_size * head_dim * size
    for j in range(count):
        position = base + j
        block = np.int64(table[position // block_size])
        row = kv + block * block_stride + (head * block_size + position % block_size) * head_dim * size
        key, value = at(row, tag), at(row + plane, tag)
        column = (j // _WIDTH) * padded * _WIDTH + j % _WIDTH
        for i in range(head_dim):
            keys[column + i * _WIDTH] = load(key, i)
        for i in range(head_dim):
            values[j * padded + i] = load(value, i)
        for i in range(head_dim, padded):
            keys[column + i * _WIDTH] = _ZERO
            values[j * padded + i] = _ZERO


@jit()
def _soften(scores, first, end, highest, total, r, o, padded):
    """Scores of row ``r`` to weights, 0 outside of ``first .. end - 1``; rescales what the row has summed so far."""
    row = r * KV_TILE
    for j in range(max(end, 0), KV_TILE):
        scores[row + j] = _MINUS_INFINITY
    for j in range(min(first, KV_TILE)):
        scores[row + j] = _MINUS_INFINITY
    start, vectors = address(scores) + row * 4, KV_TILE // _LANES
    top = max(highest[r], _maximum(start, vectors))
    if top == _MINUS_INFINITY:
        for j in range(KV_TILE):
            scores[row + j] = _ZERO
        return
    added = _weigh(start, vectors, top)
    if top > highest[r]:
        shrink = exp2(highest[r] - top)
        total[r] *= shrink
        for i in range(padded):
            o[r * padded + i] *= shrink
        highest[r] = top
    total[r] += added


@jit()
def _store_rows(out, heads, first_head, group, head_dim, tokens, o, total, padded, tag):
    size = item_size(tag)
    for t in range(tokens):
        for h in range(group):
            r = t * group + h
            target = at(out + (t * heads + first_head + h) * head_dim * size, tag)
            factor = _ONE / total[r]
            for i in range(head_dim):
                store(target, i, o[r * padded + i] * factor)


@jit()
def _decode_span(
    scores, queries, o, highest, total, kv, block_stride, table, head, kv_heads, block_size, head_dim,
    group, begin, end, tag,
):  # fmt: skip
    """Adds the positions ``begin .. end - 1``, at most ``DECODE_SPAN``, to the group's sums."""
    size, vectors = item_size(tag), head_dim // _LANES
    plane, row_bytes = kv_heads * block_size * head_dim * size, head_dim * size
    span_stride = DECODE_SPAN * 4
    scores_address, q_address, o_address = address(scores), address(queries), address(o)
    position = begin
    while position < end:
        count = min(end - position, block_size - position % block_size)
        block = kv + np.int64(table[position // block_size]) * block_stride
        keys = block + (head * block_size + position % block_size) * row_bytes
        target = scores_address + (position - begin) * 4
        _score_keys(q_address, head_dim * 4, group, keys, row_bytes, count, vectors, target, span_stride, tag)
        position += count
    vectors_in_span = (end - begin + _LANES - 1) // _LANES
    for r in range(group):
        row = r * DECODE_SPAN
        for j in range(end - begin, vectors_in_span * _LANES):
            scores[row + j] = _MINUS_INFINITY
        start = scores_address + row * 4
        top = max(highest[r], _maximum(start, vectors_in_span))
        shrink, added = exp2(highest[r] - top), _weigh(start, vectors_in_span, top)
        for i in range(head_dim):
            o[r * head_dim + i] *= shrink
        total[r] = total[r] * shrink + added
        highest[r] = top
    position = begin
    while position < end:
        count = min(end - position, block_size - position % block_size)
        block = kv + np.int64(table[position // block_size]) * block_stride + plane
        values = block + (head * block_size + position % block_size) * row_bytes
        weights = scores_address + (position - begin) * 4
        _add_values(weights, span_stride, group, values, row_bytes, count, o_address, head_dim * 4, vectors, tag)
        position += count


@jit()
def _prefill(
    queries, o, highest, total, rows, group, kv, block_stride, table, head, kv_heads, block_size, head_dim, padded,
    first_position, begin, end, window, tag,
):  # fmt: skip
    """Adds the positions ``begin .. end - 1`` to the sums of ``rows`` query rows, a tile at a time."""
    scores = np.empty(rows * KV_TILE, np.float32)
    keys, values = np.empty(KV_TILE * padded, np.float32), np.empty(KV_TILE * padded, np.float32)
    zeros = np.zeros(_WIDTH, np.float32)
    seen = first_position + 1 - window if window > 0 else 0
    for base in range(max(begin, seen) // KV_TILE * KV_TILE, end, KV_TILE):
        count = min(KV_TILE, end - base)
        _gather_tile(
            keys, values, padded, kv, block_stride, table, head, kv_heads, block_size, head_dim, base, count, tag
        )
        blind = max(0, base - first_position) * group
        left, row_bytes = rows - blind, padded * 4
        for panel in range((count + _WIDTH - 1) // _WIDTH):  # the rest of a row is masked below
            multiply_panel(
                address(queries) + blind * row_bytes, row_bytes, left, address(keys) + panel * _WIDTH * row_bytes,
                _WIDTH * 4, padded, address(zeros), 0, address(scores) + (blind * KV_TILE + panel * _WIDTH) * 4,
                KV_TILE * 4, F32, F32,
            )  # fmt: skip
        for r in range(blind, rows):
            position = first_position + r // group
            lowest = max(begin, position + 1 - window) if window > 0 else begin
            _soften(scores, lowest - base, min(position + 1, end) - base, highest, total, r, o, padded)
        _add_values(
            address(scores) + blind * KV_TILE * 4, KV_TILE * 4, left, address(values), row_bytes, count,
            address(o) + blind * row_bytes, row_bytes, padded // _LANES, F32,
        )  # fmt: skip


@jit()
def _attend_item(
    out, q, q_stride, heads, kv, block_stride, kv_heads, block_size, head_dim, tables, table_stride, positions,
    items, partials, scale, window, i32, i64, tag, n,
):  # fmt: skip
    group, size = heads // kv_heads, item_size(tag)
    padded = (head_dim + _LANES - 1) // _LANES * _LANES
    item = at(items + n * ITEM_BYTES, i64)
    head, first, tokens = item[KV_HEAD], item[TOKEN], item[TOKENS]
    begin, end, partial = item[BEGIN], item[END], item[PARTIAL]
    table = at(tables + item[SEQUENCE] * table_stride, i32)
    position = at(positions, i64)[first]
    rows, first_head = tokens * group, head * group
    queries, o = np.empty(rows * padded, np.float32), np.zeros(rows * padded, np.float32)
    highest, total = np.full(rows, _MINUS_INFINITY), np.zeros(rows, np.float32)
    factor = np.float32(scale) * _LOG2_E
    _load_queries(queries, padded, q + first * q_stride, q_stride, tokens, first_head, group, head_dim, factor, tag)
    if partial == PREFILL or padded != head_dim:
        _prefill(
            queries, o, highest, total, rows, group, kv, block_stride, table, head, kv_heads, block_size,
            head_dim, padded, position, begin, end, window, tag,
        )  # fmt: skip
    else:
        scores = np.empty(group * DECODE_SPAN, np.float32)
        start = max(begin, position + 1 - window) if window > 0 else begin
        for span in range(start, end, DECODE_SPAN):
            _decode_span(
                scores, queries, o, highest, total, kv, block_stride, table, head, kv_heads,
                block_size, head_dim, group, span, min(end, span + DECODE_SPAN), tag,
            )  # fmt: skip
    if partial < 0:
        target = out + first * heads * head_dim * size
        _store_rows(target, heads, first_head, group, head_dim, tokens, o, total, padded, tag)
        return
    sums = at(partials + partial * group * (head_dim + 2) * 4, F32)
    for r in range(group):
        for i in range(head_dim):
            sums[r * (head_dim + 2) + i] = o[r * padded + i]
        sums[r * (head_dim + 2) + head_dim] = highest[r]
        sums[r * (head_dim + 2) + head_dim + 1] = total[r]


@jit()
def attend(
    pool, out, q, q_stride, heads, kv, block_stride, kv_heads, block_size, head_dim, tables, table_stride, positions,
    items, count, partials, scale, window, i32, i64, tag,
):  # fmt: skip
    """Does all items; ``partials`` is fp32 ``[n, group, head_dim + 2]`` for the decodes that were cut."""
    arguments = (
        out, q, q_stride, heads, kv, block_stride, kv_heads, block_size, head_dim, tables, table_stride, positions,
        items, partials, scale, window, i32, i64, tag,
    )  # fmt: skip
    launch(pool, count, job(_attend_item, arguments))


@jit()
def _merge_head(out, heads, kv_heads, head_dim, merges, partials, i64, tag, n):
    group, size, width = heads // kv_heads, item_size(tag), head_dim + 2
    merge = at(merges + n * MERGE_BYTES, i64)
    head, token, first, parts = merge[1], merge[2], merge[3], merge[4]
    stride = group * width
    for r in range(group):
        sums = at(partials + (first * group + r) * width * 4, F32)
        top = _MINUS_INFINITY
        for part in range(parts):
            top = max(top, sums[part * stride + head_dim])
        total = _ZERO
        for part in range(parts):
            weight = exp2(sums[part * stride + head_dim] - top)
            total += weight * sums[part * stride + head_dim + 1]
            sums[part * stride + head_dim] = weight
        target = at(out + (token * heads + head * group + r) * head_dim * size, tag)
        for i in range(head_dim):
            value = _ZERO
            for part in range(parts):
                value += sums[part * stride + head_dim] * sums[part * stride + i]
            store(target, i, value / total)


@jit()
def merge_partials(pool, out, heads, kv_heads, head_dim, merges, count, partials, i64, tag):
    """Joins the parts of each cut decode by their log-sum-exp."""
    launch(pool, count, job(_merge_head, (out, heads, kv_heads, head_dim, merges, partials, i64, tag)))
