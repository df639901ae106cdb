"""Norms, activations, lookups, rotary embedding with the cache write: a chunk is a run of rows.

Arguments are addresses and item counts (see ``memory``). A row's arithmetic does not depend on other rows.
"""

import numpy as np

from octavo_kernels.cpu.exponential import gelu_tanh, silu
from octavo_kernels.cpu.jit import jit
from octavo_kernels.cpu.memory import F32, at, item_size, load, store
from octavo_kernels.cpu.pool import job, launch
from octavo_kernels.cpu.reductions import sum_of_squares

_ONE = np.float32(1.0)
_CHUNK_ITEMS = 1 << 14  # below this a second thread costs more than it brings


@jit()
def _chunks(rows, width, threads):
    return min(rows, threads, rows * width // _CHUNK_ITEMS + 1)


@jit()
def _norm_row(out, x, weight, width, eps, tag):
    scale = _ONE / np.sqrt(sum_of_squares(x, width, tag) / np.float32(width) + np.float32(eps))
    source, target, factors = at(x, tag), at(out, tag), at(weight, tag)
    for i in range(width):
        store(target, i, load(source, i) * scale * load(factors, i))


@jit()
def _rms_norm(out, out_stride, x, x_stride, head_stride, weight, rows, heads, width, eps, chunks, tag, chunk):
    """Compute the norm of ``rows`` x ``heads`` vectors; strides are in bytes."""
    for r in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        for h in range(heads):
            offset = h * head_stride
            _norm_row(out + r * out_stride + offset, x + r * x_stride + offset, weight, width, eps, tag)


@jit()
def rms_norm(pool, out, out_stride, x, x_stride, head_stride, weight, rows, heads, width, eps, threads, tag):
    chunks = _chunks(rows, heads * width, threads)
    launch(
        pool,
        chunks,
        job(_rms_norm, (out, out_stride, x, x_stride, head_stride, weight, rows, heads, width, eps, chunks, tag)),
    )


@jit()
def _add_rms_norm(out, x, residual, weight, rows, width, eps, chunks, tag, chunk):
    """Compute ``residual += x``, then the norm of the residual as it is stored."""
    row_bytes = width * item_size(tag)
    for r in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        row = residual + r * row_bytes
        total, update = at(row, tag), at(x + r * row_bytes, tag)
        for i in range(width):
            store(total, i, load(total, i) + load(update, i))
        _norm_row(out + r * row_bytes, row, weight, width, eps, tag)


@jit()
def add_rms_norm(pool, out, x, residual, weight, rows, width, eps, threads, tag):
    chunks = _chunks(rows, width, threads)
    launch(pool, chunks, job(_add_rms_norm, (out, x, residual, weight, rows, width, eps, chunks, tag)))


@jit()
def _silu_and_mul(out, gate_up, rows, width, chunks, tag, chunk):
    row_bytes = width * item_size(tag)
    for r in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        gate, up = at(gate_up + 2 * r * row_bytes, tag), at(gate_up + (2 * r + 1) * row_bytes, tag)
        target = at(out + r * row_bytes, tag)
        for i in range(width):
            store(target, i, silu(load(gate, i)) * load(up, i))


@jit()
def silu_and_mul(pool, out, gate_up, rows, width, threads, tag):
    chunks = _chunks(rows, 2 * width, threads)
    launch(pool, chunks, job(_silu_and_mul, (out, gate_up, rows, width, chunks, tag)))


@jit()
def _gelu_and_mul(out, gate_up, rows, width, chunks, tag, chunk):
    row_bytes = width * item_size(tag)
    for r in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        gate, up = at(gate_up + 2 * r * row_bytes, tag), at(gate_up + (2 * r + 1) * row_bytes, tag)
        target = at(out + r * row_bytes, tag)
        for i in range(width):
            store(target, i, gelu_tanh(load(gate, i)) * load(up, i))


@jit()
def gelu_and_mul(pool, out, gate_up, rows, width, threads, tag):
    chunks = _chunks(rows, 2 * width, threads)
    launch(pool, chunks, job(_gelu_and_mul, (out, gate_up, rows, width, chunks, tag)))


@jit()
def _embedding(out, weight, ids, count, width, chunks, id_tag, tag, chunk):
    tokens, table, target = at(ids, id_tag), at(weight, tag), at(out, tag)
    for i in range(chunk * count // chunks, (chunk + 1) * count // chunks):
        row = tokens[i] * width
        for j in range(width):
            target[i * width + j] = table[row + j]


@jit()
def embedding(pool, out, weight, ids, count, width, threads, id_tag, tag):
    chunks = _chunks(count, width, threads)
    launch(pool, chunks, job(_embedding, (out, weight, ids, count, width, chunks, id_tag, tag)))


@jit()
def _rotate(x, cos_sin, half):
    for i in range(half):
        first, second = load(x, i), load(x, half + i)
        cosine, sine = cos_sin[i], cos_sin[half + i]
        store(x, i, first * cosine - second * sine)
        store(x, half + i, second * cosine + first * sine)


@jit()
def _rotary_and_write(
    q,
    q_stride,
    k,
    k_stride,
    v,
    v_stride,
    heads,
    kv_heads,
    head_dim,
    cos_sin,
    rotary_dim,
    positions,
    slots,
    kv,
    block_stride,
    block_size,
    rows,
    chunks,
    i64,
    tag,
    chunk,
):
    """Rotate a token's query and key heads in place and copy keys and values to the token's slot."""
    size = item_size(tag)
    plane = kv_heads * block_size * head_dim * size
    for r in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        angles = at(cos_sin + at(positions, i64)[r] * rotary_dim * 4, F32)
        slot = at(slots, i64)[r]
        target = kv + (slot // block_size) * block_stride + (slot % block_size) * head_dim * size
        for h in range(heads):
            _rotate(at(q + r * q_stride + h * head_dim * size, tag), angles, rotary_dim // 2)
        for h in range(kv_heads):
            key = at(k + r * k_stride + h * head_dim * size, tag)
            value = at(v + r * v_stride + h * head_dim * size, tag)
            _rotate(key, angles, rotary_dim // 2)
            key_slot = at(target + h * block_size * head_dim * size, tag)
            value_slot = at(target + h * block_size * head_dim * size + plane, tag)
            for i in range(head_dim):
                key_slot[i] = key[i]
                value_slot[i] = value[i]


@jit()
def rotary_and_write(
    pool,
    q,
    q_stride,
    k,
    k_stride,
    v,
    v_stride,
    heads,
    kv_heads,
    head_dim,
    cos_sin,
    rotary_dim,
    positions,
    slots,
    kv,
    block_stride,
    block_size,
    rows,
    threads,
    i64,
    tag,
):
    chunks = _chunks(rows, (heads + 2 * kv_heads) * head_dim, threads)
    launch(
        pool,
        chunks,
        job(
            _rotary_and_write,
            (
                q,
                q_stride,
                k,
                k_stride,
                v,
                v_stride,
                heads,
                kv_heads,
                head_dim,
                cos_sin,
                rotary_dim,
                positions,
                slots,
                kv,
                block_stride,
                block_size,
                rows,
                chunks,
                i64,
                tag,
            ),
        ),
    )
