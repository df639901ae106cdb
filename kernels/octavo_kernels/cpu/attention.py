"""Paged attention in tiles of fixed places: softmax online, one pass over the keys and values of each KV head.

Query rows are the new tokens of a sequence times the heads of one group, so that keys and values are read once for
the group. *Prefill* copies a tile of ``KV_TILE`` positions to fp32 scratch, keys transposed, and multiplies with the
register tiles of ``tiles``. Tiles start at multiples of ``KV_TILE`` and what a row must not see adds exact zeros, so a
row's sums depend on its position alone. *Decode* reads keys and values where they lie.
"""

import numpy as np
from numba import prange

from octavo_kernels.cpu.attention_plan import BEGIN, END, KV_HEAD, PARTIAL, QUERY_TOKENS, SEQUENCE, TOKEN, TOKENS
from octavo_kernels.cpu.dots import make_dot
from octavo_kernels.cpu.exponential import exp2
from octavo_kernels.cpu.jit import jit
from octavo_kernels.cpu.linear import SHAPE, multiply_panel
from octavo_kernels.cpu.memory import F32, address, at, item_size, load, store
from octavo_kernels.cpu.tiles import make_tile

KV_TILE = 96
DECODE_SPAN = 128
_LANES, _WIDTH = SHAPE.lanes, SHAPE.width
_LOG2_E = np.float32(1.4426950408889634)
_MINUS_INFINITY = np.float32(-np.inf)
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)

_wide_1, _wide_2, _wide_3, _wide_6 = (make_tile(_LANES, rows, 4) for rows in (1, 2, 3, 6))
_slim_1, _slim_6 = (make_tile(_LANES, rows, 1) for rows in (1, 6))
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
def _gather_tile(keys, values, padded, kv, block_stride, table, head, kv_heads, block_size, head_dim, base, count, tag):
    """A tile's keys as panels ``[KV_TILE / width, padded, width]``, its values as ``[KV_TILE, padded]``, zero-filled."""
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
    for j in range(count, KV_TILE):
        column = (j // _WIDTH) * padded * _WIDTH + j % _WIDTH
        for i in range(padded):
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
    top = highest[r]
    for j in range(KV_TILE):
        top = max(top, scores[row + j])
    if top == _MINUS_INFINITY:
        for j in range(KV_TILE):
            scores[row + j] = _ZERO
        return
    added = _ZERO
    for j in range(KV_TILE):
        weight = exp2(scores[row + j] - top)
        scores[row + j] = weight
        added += weight
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
    scores, q_address, o_address, o, highest, total, kv, block_stride, table, head, kv_heads, block_size, head_dim,
    group, begin, end, tag,
):  # fmt: skip
    """Adds the positions ``begin .. end - 1``, at most ``DECODE_SPAN``, to the group's sums."""
    size, vectors = item_size(tag), head_dim // _LANES
    plane, row_bytes = kv_heads * block_size * head_dim * size, head_dim * size
    span_stride = DECODE_SPAN * 4
    scores_address = address(scores)
    position = begin
    while position < end:
        count = min(end - position, block_size - position % block_size)
        block = kv + np.int64(table[position // block_size]) * block_stride
        keys = block + (head * block_size + position % block_size) * row_bytes
        target = scores_address + (position - begin) * 4
        _score_keys(q_address, head_dim * 4, group, keys, row_bytes, count, vectors, target, span_stride, tag)
        position += count
    for r in range(group):
        row, top = r * DECODE_SPAN, highest[r]
        for j in range(end - begin):
            top = max(top, scores[row + j])
        shrink, added = exp2(highest[r] - top), _ZERO
        for j in range(end - begin):
            weight = exp2(scores[row + j] - top)
            scores[row + j] = weight
            added += weight
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


@jit(parallel=True)
def attend(
    out, q, q_stride, heads, kv, block_stride, kv_heads, block_size, head_dim, tables, table_stride, positions,
    items, thread_start, threads, partials, scale, window, i32, i64, tag,
):  # fmt: skip
    """All items of all threads; ``partials`` is fp32 ``[n, group, head_dim + 2]`` for the decodes that were cut."""
    group, size = heads // kv_heads, item_size(tag)
    padded = (head_dim + _LANES - 1) // _LANES * _LANES
    factor = np.float32(scale) * _LOG2_E
    for t in prange(threads):
        starts, item = at(thread_start, i64), at(items, i64)
        rows = QUERY_TOKENS * group
        queries, o = np.empty(rows * padded, np.float32), np.empty(rows * padded, np.float32)
        highest, total = np.empty(rows, np.float32), np.empty(rows, np.float32)
        scores = np.empty(max(rows * KV_TILE, group * DECODE_SPAN), np.float32)
        keys, values = np.empty(KV_TILE * padded, np.float32), np.empty(KV_TILE * padded, np.float32)
        zeros = np.zeros(_WIDTH, np.float32)
        q_address, o_address, scores_address = address(queries), address(o), address(scores)
        keys_address, values_address, zeros_address = address(keys), address(values), address(zeros)
        for n in range(starts[t], starts[t + 1]):
            field = n * 7
            head, first, tokens = item[field + KV_HEAD], item[field + TOKEN], item[field + TOKENS]
            begin, end, partial = item[field + BEGIN], item[field + END], item[field + PARTIAL]
            table = at(tables + item[field + SEQUENCE] * table_stride, i32)
            first_position = at(positions, i64)[first]
            rows = tokens * group
            first_head = head * group
            _load_queries(
                queries, padded, q + first * q_stride, q_stride, tokens, first_head, group, head_dim, factor, tag
            )
            for r in range(rows):
                highest[r], total[r] = _MINUS_INFINITY, _ZERO
            for i in range(rows * padded):
                o[i] = _ZERO
            seen = first_position + 1 - window if window > 0 else 0
            if partial >= -1 and padded == head_dim:
                start = max(begin, seen)
                while start < end:
                    stop = min(end, start + DECODE_SPAN)
                    _decode_span(
                        scores, q_address, o_address, o, highest, total, kv, block_stride, table, head, kv_heads,
                        block_size, head_dim, group, start, stop, tag,
                    )  # fmt: skip
                    start = stop
            else:
                base = max(begin, seen) // KV_TILE * KV_TILE
                while base < end:
                    _gather_tile(
                        keys, values, padded, kv, block_stride, table, head, kv_heads, block_size, head_dim, base,
                        min(KV_TILE, end - base), tag,
                    )  # fmt: skip
                    blind = max(0, base - first_position) * group
                    left = rows - blind
                    for panel in range(KV_TILE // _WIDTH):
                        multiply_panel(
                            q_address + blind * padded * 4, padded * 4, left,
                            keys_address + panel * padded * _WIDTH * 4, _WIDTH * 4, padded, zeros_address, 0,
                            scores_address + (blind * KV_TILE + panel * _WIDTH) * 4, KV_TILE * 4, F32, F32,
                        )  # fmt: skip
                    for r in range(blind, rows):
                        position = first_position + r // group
                        lowest = position + 1 - window if window > 0 else 0
                        limit = min(position + 1, end) - base
                        lower = max(begin, lowest) - base
                        _soften(scores, lower, limit, highest, total, r, o, padded)
                    _add_values(
                        scores_address + blind * KV_TILE * 4, KV_TILE * 4, left, values_address, padded * 4,
                        KV_TILE, o_address + blind * padded * 4, padded * 4, padded // _LANES, F32,
                    )  # fmt: skip
                    base += KV_TILE
            if partial < 0:
                target = out + first * heads * head_dim * size
                _store_rows(target, heads, first_head, group, head_dim, tokens, o, total, padded, tag)
            else:
                sums = at(partials + partial * group * (head_dim + 2) * 4, F32)
                for r in range(group):
                    for i in range(head_dim):
                        sums[r * (head_dim + 2) + i] = o[r * padded + i]
                    sums[r * (head_dim + 2) + head_dim] = highest[r]
                    sums[r * (head_dim + 2) + head_dim + 1] = total[r]


@jit(parallel=True)
def merge_partials(out, heads, kv_heads, head_dim, merges, count, partials, threads, i64, tag):
    """Joins the parts of each cut decode by their log-sum-exp."""
    group, size, width = heads // kv_heads, item_size(tag), head_dim + 2
    for t in prange(threads):
        merge = at(merges, i64)
        for n in range(t * count // threads, (t + 1) * count // threads):
            head, token, first, parts = merge[n * 5 + 1], merge[n * 5 + 2], merge[n * 5 + 3], merge[n * 5 + 4]
            for r in range(group):
                sums = at(partials + (first * group + r) * width * 4, F32)
                stride = group * width
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
