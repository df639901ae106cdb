"""Linear layers over weights packed in panels: one product for every number of rows.

A panel holds ``width`` outputs. In fp32 the panels are ``[outputs / width, in, width]``. In bf16 they are
``[outputs / width, in / 2, width, 2]``, with inputs k and k + 1 interleaved. The panels are the only copy of a weight.
A tile's rows do not affect each other (see ``tiles``), so the product is batch-invariant.

Panels were measured against packed oneDNN and MKL on a processor without bf16 arithmetic. They are the fastest at 1 to
64 rows in both types and level with the best at 256.
"""

import ctypes

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_kernels.cpu.arguments import check_ids, check_rows
from octavo_kernels.cpu.instruction_set import TILE
from octavo_kernels.cpu.jit import jit
from octavo_kernels.cpu.memory import F32, IdTag, Tag, address, at, id_tag_of, item_size, load, store, tag_of
from octavo_kernels.cpu.pool import ThreadPool, job, launch
from octavo_kernels.cpu.records import address_of, reader, record
from octavo_kernels.cpu.tiles import make_tile, make_widen_pair

_ROWS, _WIDTH = TILE.rows, TILE.width
_CHUNKS_PER_THREAD = 8  # small enough to even out threads, large enough to read long runs of weights
_WIDEN_ITEMS = 1 << 15
_WIDEN_FROM = 2 * TILE.rows  # rows: from here on it pays to widen each bf16 weight once for all tiles
_DEPTH = 512  # inputs of a panel that are widened at once, so that they stay in the first or second cache

_tile_1, _tile_2, _tile_3, _tile_4, _tile_5, _tile_6, _tile_7, _tile_8 = (
    make_tile(TILE.lanes, rows, TILE.vectors) for rows in range(1, 9)
)
_full_tile = make_tile(TILE.lanes, _ROWS, TILE.vectors)
_widen_pair = make_widen_pair(TILE.lanes, TILE.vectors)


@record
class Panels(ctypes.Structure):
    """A packed weight: the addresses of its panels and of its bias, and its size."""

    panels: int
    bias: int  # fp32, one number for each output, zeros at the end of the last panel
    inputs: int
    padded_inputs: int  # even for bf16
    outputs: int


_read_panels = reader(Panels)


@jit()
def multiply_panel(
    x: int,
    x_stride: int,
    rows: int,
    w: int,
    w_stride: int,
    k: int,
    init: int,
    init_stride: int,
    c: int,
    c_stride: int,
    w_tag: Tag,
    c_tag: Tag,
) -> None:
    """Compute ``c[rows, width] = init + x @ w`` for one panel."""
    while rows >= _ROWS:
        _full_tile(x, x_stride, w, w_stride, k, init, init_stride, c, c_stride, w_tag, c_tag)
        x += _ROWS * x_stride
        c += _ROWS * c_stride
        init += _ROWS * init_stride
        rows -= _ROWS
    if rows == 1:
        _tile_1(x, x_stride, w, w_stride, k, init, init_stride, c, c_stride, w_tag, c_tag)
    elif rows == 2:
        _tile_2(x, x_stride, w, w_stride, k, init, init_stride, c, c_stride, w_tag, c_tag)
    elif rows == 3:
        _tile_3(x, x_stride, w, w_stride, k, init, init_stride, c, c_stride, w_tag, c_tag)
    elif rows == 4:
        _tile_4(x, x_stride, w, w_stride, k, init, init_stride, c, c_stride, w_tag, c_tag)
    elif rows == 5:
        _tile_5(x, x_stride, w, w_stride, k, init, init_stride, c, c_stride, w_tag, c_tag)
    elif rows == 6:
        _tile_6(x, x_stride, w, w_stride, k, init, init_stride, c, c_stride, w_tag, c_tag)
    elif rows == 7:
        _tile_7(x, x_stride, w, w_stride, k, init, init_stride, c, c_stride, w_tag, c_tag)


@jit()
def _multiply_last_panel(
    x: int,
    x_stride: int,
    rows: int,
    w: int,
    w_stride: int,
    k: int,
    bias: int,
    c: int,
    c_stride: int,
    columns: int,
    w_tag: Tag,
    c_tag: Tag,
) -> None:
    """Multiply a panel of which only the first ``columns`` are outputs, by way of a scratch row."""
    scratch = np.empty(_WIDTH, np.float32)
    scratch_address = address(scratch)
    for _ in range(rows):
        _tile_1(x, x_stride, w, w_stride, k, bias, 0, scratch_address, 0, w_tag, F32)
        line = at(c, c_tag)
        for j in range(columns):
            store(line, j, scratch[j])
        x += x_stride
        c += c_stride


@jit()
def _widen_panel(w: int, depth: int, wide: int) -> None:
    """Widen ``depth`` inputs of a bf16 panel to fp32 ``[depth, width]``."""
    for pair in range(depth // 2):
        _widen_pair(w + pair * _WIDTH * 4, wide + 2 * pair * _WIDTH * 4)


@jit()
def _multiply_widened(
    x: int, x_stride: int, rows: int, w: int, w_stride: int, k: int, bias: int, c: int, c_stride: int, c_tag: Tag
) -> None:
    """Compute ``multiply_panel`` for a bf16 panel and many rows.

    The sums and their order are the same. Each weight is widened once.
    """
    wide, sums = np.empty(_DEPTH * _WIDTH, np.float32), np.empty(rows * _WIDTH, np.float32)
    init, init_stride, row = bias, 0, _WIDTH * 4
    for begin in range(0, k, _DEPTH):
        depth = min(_DEPTH, k - begin)
        _widen_panel(w + begin // 2 * w_stride, depth, address(wide))
        x_part = x + begin * 4
        if begin + depth == k:
            multiply_panel(
                x_part, x_stride, rows, address(wide), row, depth, init, init_stride, c, c_stride, F32, c_tag
            )
        else:
            multiply_panel(
                x_part, x_stride, rows, address(wide), row, depth, init, init_stride, address(sums), row, F32, F32
            )
            init, init_stride = address(sums), row


@jit()
def _widen_rows(x: int, x_stride: int, rows: int, k: int, wide: int, chunks: int, x_tag: Tag, chunk: int) -> None:
    target = at(wide, F32)
    for r in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        line = at(x + r * x_stride, x_tag)
        for i in range(k):
            target[r * k + i] = load(line, i)


@jit()
def _multiply_tiles(
    x: int, x_stride: int, rows: int, weight: int, c: int, chunks: int, w_tag: Tag, c_tag: Tag, chunk: int
) -> None:
    """Compute a run of the product's tiles (row block x panel), panel by panel, to read each weight once."""
    packed = _read_panels(weight)
    k, w, bias, columns = packed.padded_inputs, packed.panels, packed.bias, packed.outputs
    size, out_size = item_size(w_tag), item_size(c_tag)
    panels = (columns + _WIDTH - 1) // _WIDTH
    blocks = (rows + _ROWS - 1) // _ROWS
    w_stride, c_stride = _WIDTH * 4, columns * out_size
    tile, end = chunk * panels * blocks // chunks, (chunk + 1) * panels * blocks // chunks
    while tile < end:
        panel, block = tile // blocks, tile % blocks
        last = min(blocks, block + end - tile)
        first = block * _ROWS
        count = min(rows, last * _ROWS) - first
        column = panel * _WIDTH
        x_block, w_panel, bias_panel = x + first * x_stride, w + column * k * size, bias + column * 4
        c_block = c + first * c_stride + column * out_size
        if columns - column >= _WIDTH and size == 2 and count >= _WIDEN_FROM:
            _multiply_widened(x_block, x_stride, count, w_panel, w_stride, k, bias_panel, c_block, c_stride, c_tag)
        elif columns - column >= _WIDTH:
            multiply_panel(
                x_block, x_stride, count, w_panel, w_stride, k, bias_panel, 0, c_block, c_stride, w_tag, c_tag
            )
        else:
            left = columns - column
            _multiply_last_panel(
                x_block, x_stride, count, w_panel, w_stride, k, bias_panel, c_block, c_stride, left, w_tag, c_tag
            )
        tile += last - block


@jit()
def multiply(
    pool: int,
    x: int,
    x_stride: int,
    rows: int,
    weight: int,
    c: int,
    wide: int,
    threads: int,
    x_tag: Tag,
    w_tag: Tag,
    c_tag: Tag,
) -> None:
    """Compute ``c[rows, outputs] = x @ weight + bias``; ``weight`` is the address of a ``Panels`` record.

    ``wide`` is fp32 scratch ``[rows, padded_inputs]`` for an ``x`` that is not fp32.
    """
    packed = _read_panels(weight)
    k, columns = packed.padded_inputs, packed.outputs
    if wide != 0:
        chunks = min(threads, rows * k // _WIDEN_ITEMS + 1)
        launch(pool, chunks, job(_widen_rows, (x, x_stride, rows, k, wide, chunks, x_tag)))
        x, x_stride = wide, k * 4
    tiles = ((columns + _WIDTH - 1) // _WIDTH) * ((rows + _ROWS - 1) // _ROWS)
    chunks = min(tiles, threads * _CHUNKS_PER_THREAD)
    launch(pool, chunks, job(_multiply_tiles, (x, x_stride, rows, weight, c, chunks, w_tag, c_tag)))


@jit()
def _look_up_rows(
    ids: int, count: int, weight: int, out: int, chunks: int, id_tag: IdTag, w_tag: Tag, chunk: int
) -> None:
    packed = _read_panels(weight)
    width, k = packed.inputs, packed.padded_inputs
    source, tokens, target = at(packed.panels, w_tag), at(ids, id_tag), at(out, w_tag)
    for i in range(chunk * count // chunks, (chunk + 1) * count // chunks):
        panel, column = np.int64(tokens[i]) // _WIDTH, np.int64(tokens[i]) % _WIDTH
        base = panel * _WIDTH * k
        if item_size(w_tag) == 2:
            for j in range(width):
                target[i * width + j] = source[base + (j // 2) * 2 * _WIDTH + 2 * column + j % 2]
        else:
            for j in range(width):
                target[i * width + j] = source[base + j * _WIDTH + column]


@jit()
def look_up(pool: int, ids: int, count: int, weight: int, out: int, threads: int, id_tag: IdTag, w_tag: Tag) -> None:
    """Copy rows ``ids`` of a weight packed for a product (a ``Panels`` record) to ``out[count, inputs]``."""
    chunks = min(count, threads)
    launch(pool, chunks, job(_look_up_rows, (ids, count, weight, out, chunks, id_tag, w_tag)))


def pack_panels(weight: Tensor) -> Tensor:
    """Pack ``[out, in]`` to panels, with zeros if ``out`` is no multiple of the width or ``in`` is odd."""
    out_features, in_features = weight.shape
    weight = F.pad(weight, (0, in_features % 2, 0, -out_features % _WIDTH))
    panels = weight.view(-1, _WIDTH, weight.shape[1])
    if weight.dtype == torch.float32:
        return panels.transpose(1, 2).contiguous()
    return panels.view(-1, _WIDTH, weight.shape[1] // 2, 2).transpose(1, 2).contiguous()


class PanelLinear:
    """``[T, in] -> [T, out]`` for fp32 and bf16 weights; ``x`` has the weight's type and contiguous rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None, out_dtype: torch.dtype, pool: ThreadPool) -> None:
        self.out_features, self.in_features = weight.shape
        self.dtype, self.out_dtype = weight.dtype, out_dtype
        self._padded_in = self.in_features + self.in_features % 2
        self._tensor = pack_panels(weight)
        self._bias = torch.zeros(self._tensor.shape[0] * _WIDTH)
        if bias is not None:
            self._bias[: self.out_features] = bias
        self._pool = pool
        self._tags = (tag_of(weight.dtype), tag_of(weight.dtype), tag_of(out_dtype))
        self._panels = Panels(
            panels=self._tensor.data_ptr(),
            bias=self._bias.data_ptr(),
            inputs=self.in_features,
            padded_inputs=self._padded_in,
            outputs=self.out_features,
        )
        self._weight = address_of(self._panels)

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype != self.dtype or x.shape[1] != self.in_features:
            raise ValueError(f"x: {x.dtype} {tuple(x.shape)}, allowed: {self.dtype} [T, {self.in_features}]")
        check_rows("x", x)
        if self._padded_in != self.in_features:
            x = F.pad(x, (0, 1))
        rows = x.shape[0]
        out = torch.empty((rows, self.out_features), dtype=self.out_dtype)
        wide = None if x.dtype == torch.float32 else torch.empty(rows * self._padded_in)
        if rows:
            multiply(
                self._pool.control,
                x.data_ptr(),
                x.stride(0) * x.element_size(),
                rows,
                self._weight,
                out.data_ptr(),
                0 if wide is None else wide.data_ptr(),
                self._pool.num_threads,
                *self._tags,
            )
        return out

    def look_up(self, token_ids: Tensor) -> Tensor:
        """Return rows of the weight: ``[T] (int32 or int64) -> [T, in]``."""
        check_ids("token_ids", token_ids, self.out_features)
        out = torch.empty((len(token_ids), self.in_features), dtype=self.dtype)
        look_up(
            self._pool.control,
            token_ids.data_ptr(),
            len(token_ids),
            self._weight,
            out.data_ptr(),
            self._pool.num_threads,
            id_tag_of(token_ids),
            self._tags[1],
        )
        return out
