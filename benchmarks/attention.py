"""Times attention on the CPU backend, beside torch's operator and the read bandwidth of this machine.

    python benchmarks/attention.py [--dtype bfloat16] [--threads 2] [--repeats 5]

Milliseconds of one layer, the fastest of several passes over all layers, so that keys and values come from memory.
``bandwidth`` is the bytes of keys and values read, by time, as a share of the read bandwidth measured in the same run.
``x`` is the time of torch's ``scaled_dot_product_attention`` over tensors without blocks, divided by ours.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import octavo_kernels

BLOCK, HEAD_DIM = 16, 64
READ_BYTES = 5 << 28


@dataclass(frozen=True)
class Shape:
    """``rows`` sequences of ``length`` positions, each with ``new`` new tokens."""

    rows: int
    new: int
    length: int
    heads: int = 9
    kv_heads: int = 3
    layers: int = 30

    def __str__(self) -> str:
        return f"{self.rows} x {self.new} of {self.length}, {self.heads}/{self.kv_heads} heads"


SHAPES = (
    Shape(64, 1, 320),
    Shape(8, 1, 2080),
    Shape(1, 512, 512),
    Shape(1, 512, 2048),
    Shape(1, 1, 8192),
    Shape(1, 1, 8192, heads=8, kv_heads=1),
)


def fastest(call: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest call, after one that is not counted."""
    best = float("inf")
    for _ in range(repeats + 1):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return best


def read_bandwidth(repeats: int) -> float:
    """Bytes a second of a sum over more than a GiB by all of torch's threads."""
    data = torch.ones(READ_BYTES // 4)
    return READ_BYTES / fastest(data.sum, repeats)


def ours(kernels: octavo_kernels.Kernels, shape: Shape, dtype: torch.dtype) -> Callable[[], object]:
    """Attention of all layers, over blocks in random order."""
    width = -(-shape.length // BLOCK)
    blocks = shape.rows * width
    cache = torch.randn(blocks, shape.layers, 2, shape.kv_heads, BLOCK, HEAD_DIM).to(dtype)
    meta = kernels.plan_attention(
        torch.arange(0, shape.rows * shape.new + 1, shape.new, dtype=torch.int32),
        torch.full((shape.rows,), shape.length, dtype=torch.int32),
        torch.randperm(blocks, dtype=torch.int32).view(shape.rows, width),
        block_size=BLOCK,
        num_kv_heads=shape.kv_heads,
    )
    q = torch.randn(shape.rows * shape.new, shape.heads, HEAD_DIM).to(dtype)
    layers = cache.unbind(1)
    return lambda: [kernels.attention(q, layer, meta, scale=0.125) for layer in layers]


def theirs(shape: Shape, dtype: torch.dtype) -> Callable[[], object]:
    """torch's attention of all layers; each layer has its keys and values in one piece."""
    layers = [
        [torch.randn(shape.rows, shape.kv_heads, shape.length, HEAD_DIM).to(dtype) for _ in range(2)]
        for _ in range(shape.layers)
    ]
    q = torch.randn(shape.rows, shape.heads, shape.new, HEAD_DIM).to(dtype)
    mask: Tensor | None = None
    if shape.new > 1:
        first = shape.length - shape.new
        mask = torch.arange(shape.length) <= torch.arange(first, shape.length)[:, None]
    return lambda: [
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.125, enable_gqa=True) for k, v in layers
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, default=0, help="0: one for each processor")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    kernels = octavo_kernels.for_device("cpu", num_threads=options.threads)
    torch.set_num_threads(options.threads or torch.get_num_threads())
    bandwidth = read_bandwidth(options.repeats)
    print(f"{kernels.instruction_set}, {options.dtype}, reads {bandwidth / 1e9:.1f} GB/s by {torch.get_num_threads()}")
    print(f"{'sequences x new tokens':36}{'ms':>9}{'bandwidth':>11}{'x':>7}")
    for shape in SHAPES:
        mine = fastest(ours(kernels, shape, dtype), options.repeats) / shape.layers
        other = fastest(theirs(shape, dtype), options.repeats) / shape.layers
        read = 2 * shape.rows * shape.length * shape.kv_heads * HEAD_DIM * dtype.itemsize
        print(f"{shape!s:36}{mine * 1e3:9.3f}{read / mine / bandwidth:11.2f}{other / mine:7.2f}", flush=True)


if __name__ == "__main__":
    main()
