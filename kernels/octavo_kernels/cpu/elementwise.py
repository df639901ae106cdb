"""Norms, activations, lookups, rotary embedding with the cache write: a chunk is a run of rows.

Arguments are addresses and item counts (see ``memory``). A row's arithmetic does not depend on other rows.
"""

import ctypes
from typing import Any

import numpy as np

from octavo_kernels.cpu.attention_tiles import PANEL
from octavo_kernels.cpu.exponential import gelu_tanh, silu
from octavo_kernels.cpu.jit import jit
from octavo_kernels.cpu.memory import F32, I64, IdTag, Tag, at, item_size, load, store
from octavo_kernels.cpu.pool import job, launch
from octavo_kernels.cpu.records import read_cache, read_step, reader, record
from octavo_kernels.cpu.reductions import sum_of_squares

_ONE = np.float32(1.0)
_CHUNK_ITEMS = 1 << 14  # below this a second thread costs more than it brings


@jit()
def _chunks(rows: int, width: int, threads: int) -> int:
    return min(rows, threads, rows * width // _CHUNK_ITEMS + 1)


@jit()
def _norm_row(out: int, x: int, weight: int, width: int, eps: float, tag: Tag) -> None:
    scale = _ONE / np.sqrt(sum_of_squares(x, width, tag) / np.float32(width) + np.float32(eps))
    source, target, factors = at(x, tag), at(out, tag), at(weight, tag)
    for i in range(width):
        store(target, i, load(source, i) * scale * load(factors, i))


@record
class Norm(ctypes.Structure):
    """Operands of ``rms_norm``: ``rows`` x ``heads`` vectors of ``width`` numbers; strides are in bytes."""

    out: int
    out_stride: int
    x: int
    x_stride: int
    head_stride: int
    weight: int
    rows: int
    heads: int
    width: int
    eps: float


_read_norm = reader(Norm)


@jit()
def _rms_norm(operands: int, chunks: int, tag: Tag, chunk: int) -> None:
    n = _read_norm(operands)
    rows = n.rows
    for r in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        for h in range(n.heads):
            out, x = n.out + r * n.out_stride + h * n.head_stride, n.x + r * n.x_stride + h * n.head_stride
            _norm_row(out, x, n.weight, n.width, n.eps, tag)


@jit()
def rms_norm(pool: int, operands: int, threads: int, tag: Tag) -> None:
    """Compute the norms of a ``Norm`` record at the address ``operands``."""
    n = _read_norm(operands)
    chunks = _chunks(n.rows, n.heads * n.width, threads)
    launch(pool, chunks, job(_rms_norm, (operands, chunks, tag)))


@jit()
def _add_rms_norm(
    out: int, x: int, residual: int, weight: int, rows: int, width: int, eps: float, chunks: int, tag: Tag, chunk: int
) -> None:
    """Compute ``residual += x``, then the norm of the residual as it is stored."""
    row_bytes = width * item_size(tag)
    for r in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        row = residual + r * row_bytes
        total, update = at(row, tag), at(x + r * row_bytes, tag)
        for i in range(width):
            store(total, i, load(total, i) + load(update, i))
        _norm_row(out + r * row_bytes, row, weight, width, eps, tag)


@jit()
def add_rms_norm(
    pool: int, out: int, x: int, residual: int, weight: int, rows: int, width: int, eps: float, threads: int, tag: Tag
) -> None:
    chunks = _chunks(rows, width, threads)
    launch(pool, chunks, job(_add_rms_norm, (out, x, residual, weight, rows, width, eps, chunks, tag)))


@jit()
def _silu_and_mul(out: int, gate_up: int, rows: int, width: int, chunks: int, tag: Tag, chunk: int) -> None:
    row_bytes = width * item_size(tag)
    for r in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        gate, up = at(gate_up + 2 * r * row_bytes, tag), at(gate_up + (2 * r + 1) * row_bytes, tag)
        target = at(out + r * row_bytes, tag)
        for i in range(width):
            store(target, i, silu(load(gate, i)) * load(up, i))


@jit()
def silu_and_mul(pool: int, out: int, gate_up: int, rows: int, width: int, threads: int, tag: Tag) -> None:
    chunks = _chunks(rows, 2 * width, threads)
    launch(pool, chunks, job(_silu_and_mul, (out, gate_up, rows, width, chunks, tag)))


@jit()
def _gelu_and_mul(out: int, gate_up: int, rows: int, width: int, chunks: int, tag: Tag, chunk: int) -> None:
    row_bytes = width * item_size(tag)
    for r in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        gate, up = at(gate_up + 2 * r * row_bytes, tag), at(gate_up + (2 * r + 1) * row_bytes, tag)
        target = at(out + r * row_bytes, tag)
        for i in range(width):
            store(target, i, gelu_tanh(load(gate, i)) * load(up, i))


@jit()
def gelu_and_mul(pool: int, out: int, gate_up: int, rows: int, width: int, threads: int, tag: Tag) -> None:
    chunks = _chunks(rows, 2 * width, threads)
    launch(pool, chunks, job(_gelu_and_mul, (out, gate_up, rows, width, chunks, tag)))


@jit()
def _embedding(
    out: int, weight: int, ids: int, count: int, width: int, chunks: int, id_tag: IdTag, tag: Tag, chunk: int
) -> None:
    tokens, table, target = at(ids, id_tag), at(weight, tag), at(out, tag)
    for i in range(chunk * count // chunks, (chunk + 1) * count // chunks):
        row = tokens[i] * width
        for j in range(width):
            target[i * width + j] = table[row + j]


@jit()
def embedding(
    pool: int, out: int, weight: int, ids: int, count: int, width: int, threads: int, id_tag: IdTag, tag: Tag
) -> None:
    chunks = _chunks(count, width, threads)
    launch(pool, chunks, job(_embedding, (out, weight, ids, count, width, chunks, id_tag, tag)))


@jit()
def _rotate(x: Any, cos_sin: Any, half: int) -> None:
    for i in range(half):
        first, second = load(x, i), load(x, half + i)
        cosine, sine = cos_sin[i], cos_sin[half + i]
        store(x, i, first * cosine - second * sine)
        store(x, half + i, second * cosine + first * sine)


@record
class Rotary(ctypes.Structure):
    """Operands of ``rotary_and_write``: addresses, and bytes between the tokens of q, k and v."""

    q: int
    q_stride: int
    heads: int
    k: int
    k_stride: int
    v: int
    v_stride: int
    cos_sin: int  # fp32 [max_position, rotary_dim]
    rotary_dim: int


_read_rotary = reader(Rotary)


@jit()
def _rotary_and_write(operands: int, cache: int, step: int, chunks: int, tag: Tag, chunk: int) -> None:
    """Rotate a token's query and key heads in place and copy keys and values to the token's slot."""
    x, layer, places = _read_rotary(operands), read_cache(cache), read_step(step)
    q, q_stride, k, k_stride, v, v_stride = x.q, x.q_stride, x.k, x.k_stride, x.v, x.v_stride
    heads, kv_heads, head_dim, rotary_dim = x.heads, layer.heads, layer.head_dim, x.rotary_dim
    kv, block_size, block_stride = layer.address, layer.block_size, layer.block_stride
    cos_sin, rows, size = x.cos_sin, places.num_tokens, item_size(tag)
    positions, slots = at(places.positions, I64), at(places.slots, I64)
    plane, per_line = kv_heads * block_size * head_dim * size, 4 // size  # dimensions of a position in a cache line
    for r in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        angles, slot = at(cos_sin + positions[r] * rotary_dim * 4, F32), slots[r]
        block, offset = kv + (slot // block_size) * block_stride, slot % block_size
        place = offset % PANEL
        first_in_panel = offset - place
        for h in range(heads):
            _rotate(at(q + r * q_stride + h * head_dim * size, tag), angles, rotary_dim // 2)
        for h in range(kv_heads):
            key = at(k + r * k_stride + h * head_dim * size, tag)
            value = at(v + r * v_stride + h * head_dim * size, tag)
            _rotate(key, angles, rotary_dim // 2)
            head_block = block + h * block_size * head_dim * size
            panel, value_slot = at(head_block + first_in_panel * head_dim * size, tag), at(head_block + plane, tag)
            for i in range(head_dim):
                panel[(i // per_line * PANEL + place) * per_line + i % per_line] = key[i]
                value_slot[offset * head_dim + i] = value[i]


@jit()
def rotary_and_write(pool: int, operands: int, cache: int, step: int, threads: int, tag: Tag) -> None:
    """Rotate and write the step's tokens.

    ``operands``, ``cache`` and ``step`` are the addresses of records: ``Rotary``, ``CacheLayer`` and ``StepPlaces``.
    """
    layer = read_cache(cache)
    width = (_read_rotary(operands).heads + 2 * layer.heads) * layer.head_dim
    chunks = _chunks(read_step(step).num_tokens, width, threads)
    launch(pool, chunks, job(_rotary_and_write, (operands, cache, step, chunks, tag)))
