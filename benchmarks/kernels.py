"""Times each piece of a step on the CPU backend, for the shapes of SmolLM2-135M, beside torch's own operators.

    python benchmarks/kernels.py [--dtype float32] [--threads 2] [--rows 1,4,16,64,256] [--context 256]

Milliseconds per step: all layers, the fastest of several runs; ``x`` is torch's time divided by ours. Each of M rows is
one decoding sequence with ``--context`` positions in its cache; ``prefill`` is one sequence of M new tokens.
"""

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import octavo_kernels
from octavo_kernels import SamplingBatch

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCABULARY = 30, 576, 9, 3, 64, 1536, 49152
LINEARS = {"qkv": (960, 576), "o": (576, 576), "gate_up": (3072, 576), "down": (576, 1536)}
BLOCK = 16


def compare(ours: Callable[[], object], theirs: Callable[[], object] | None, repeats: int) -> tuple[float, float]:
    """Fastest time of each, in milliseconds."""
    return fastest(ours, repeats), fastest(theirs, repeats) if theirs is not None else float("nan")


def fastest(call: Callable[[], object], repeats: int) -> float:
    time.sleep(0.03)  # OpenMP's threads, which torch uses, go on spinning for milliseconds after their last work
    best = float("inf")
    for _ in range(repeats + 1):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return best * 1e3


def sequences(kernels: octavo_kernels.Kernels, query_lens: list[int], seq_lens: list[int]):
    """Attention metadata with each sequence's blocks in a row."""
    width = max(-(-n // BLOCK) for n in seq_lens)
    tables = torch.arange(len(seq_lens) * width, dtype=torch.int32).view(-1, width)
    starts = torch.tensor([0, *query_lens]).cumsum(0).int()
    return kernels.plan_attention(
        starts, torch.tensor(seq_lens, dtype=torch.int32), tables, block_size=BLOCK, num_kv_heads=KV_HEADS
    )


def torch_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-5)


def pieces(kernels: octavo_kernels.Kernels, dtype: torch.dtype, m: int, context: int, weights, head_weight: Tensor):
    """Yields (name, ours, torch's or None) for ``m`` rows."""
    packed, head, raw = weights
    inputs = {k: torch.randn(m, k).to(dtype) for k in (WIDTH, FFN)}
    for name in LINEARS:
        ours, theirs = [layer[name] for layer in packed], [layer[name] for layer in raw]
        x = inputs[LINEARS[name][1]]
        yield name, lambda ours=ours, x=x: [f(x) for f in ours], lambda t=theirs, x=x: [F.linear(x, w) for w in t]
    few = inputs[WIDTH][:64]
    yield f"lm_head ({len(few)} rows)", lambda: head(few), lambda: F.linear(few, head_weight)

    norm, x, residual = torch.ones(WIDTH).to(dtype), inputs[WIDTH], inputs[WIDTH].clone() * 0
    layers = range(LAYERS)
    yield (
        "2 add_rms_norm",
        lambda: [kernels.add_rms_norm(x, residual, norm, 1e-5) for _ in range(2 * LAYERS)],
        lambda: [torch_norm(residual.add_(x), norm) for _ in range(2 * LAYERS)],
    )
    gate_up = torch.randn(m, 2 * FFN).to(dtype)
    yield (
        "silu_and_mul",
        lambda: [kernels.silu_and_mul(gate_up) for _ in layers],
        lambda: [F.silu(gate_up[:, :FFN]) * gate_up[:, FFN:] for _ in layers],
    )
    qkv = torch.randn(m, (HEADS + 2 * KV_HEADS) * HEAD_DIM).to(dtype)
    q, k, v = (
        part.view(m, -1, HEAD_DIM) for part in qkv.split([n * HEAD_DIM for n in (HEADS, KV_HEADS, KV_HEADS)], dim=1)
    )
    angles = torch.rand(8192, HEAD_DIM // 2) * 6.28
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)  # rotations in place, again and again: keep the length

    for name, query_lens, lens in (("decode", [1] * m, [context] * m), ("prefill", [m], [m])):
        blocks = sum(-(-n // BLOCK) for n in lens)
        cache = torch.randn(blocks, LAYERS, 2, KV_HEADS, BLOCK, HEAD_DIM).to(dtype)
        meta = sequences(kernels, query_lens, lens)
        if name == "decode":
            yield "plan_attention", lambda a=query_lens, b=lens: sequences(kernels, a, b), None
            yield (
                "rotary_and_write",
                lambda c=cache, meta=meta: [kernels.rotary_and_write(q, k, v, cos_sin, c[:, i], meta) for i in layers],
                None,
            )
        batch, length = len(lens), lens[0]
        keys = torch.randn(batch, KV_HEADS, length, HEAD_DIM).to(dtype)
        queries = torch.randn(batch, HEADS, query_lens[0], HEAD_DIM).to(dtype)
        yield (
            f"attention, {name}",
            lambda c=cache, meta=meta: [kernels.attention(q, c[:, i], meta, scale=0.125) for i in layers],
            lambda queries=queries, keys=keys, causal=name == "prefill": [
                F.scaled_dot_product_attention(queries, keys, keys, is_causal=causal, enable_gqa=True) for _ in layers
            ],
        )

    rows = min(m, 64)
    logits = torch.randn(rows, VOCABULARY) * 3
    yield f"argmax ({rows} rows)", lambda: kernels.argmax(logits), lambda: logits.argmax(dim=-1)
    index, one = torch.arange(rows, dtype=torch.int32), torch.ones(rows)

    def batch(top_k: int, top_p: float) -> SamplingBatch:
        return SamplingBatch(
            index, one * 0.8, (index * 0) + top_k, one * top_p, one * 0, index.long(), index * 0, index.long()
        )

    plain, filtered = batch(0, 1.0), batch(50, 0.95)
    yield (
        "sample, T 0.8",
        lambda: kernels.sample(logits, plain),
        lambda: torch.multinomial((logits / 0.8).softmax(dim=-1), 1),
    )
    yield (
        "sample, k 50, p 0.95",
        lambda: kernels.sample(logits, filtered),
        lambda: torch.multinomial((logits / 0.8).topk(50).values.softmax(dim=-1), 1),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "both"], default="both")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rows", default="1,4,16,64,256")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    kernels = octavo_kernels.for_device("cpu", num_threads=args.threads)
    sizes = [int(m) for m in args.rows.split(",")]
    for dtype in (torch.float32, torch.bfloat16) if args.dtype == "both" else (getattr(torch, args.dtype),):
        kernels.warm_up(dtype, HEAD_DIM, print)
        raw = [{name: (torch.randn(s) * 0.02).to(dtype) for name, s in LINEARS.items()} for _ in range(LAYERS)]
        packed = [{name: kernels.pack_linear(w) for name, w in layer.items()} for layer in raw]
        head_weight = (torch.randn(VOCABULARY, WIDTH) * 0.02).to(dtype)
        _, head = kernels.pack_embedding(head_weight, tied=True)
        table: dict[str, list[str]] = {}
        totals = [0.0] * len(sizes)
        for column, m in enumerate(sizes):
            for name, ours, theirs in pieces(kernels, dtype, m, args.context, (packed, head, raw), head_weight):
                mine, torchs = compare(ours, theirs, args.repeats)
                ratio = f"{torchs / mine:5.1f}x" if theirs else "      "
                table.setdefault(name.split(" (")[0], []).append(f"{mine:8.2f} {ratio}")
                if not name.startswith(("attention, prefill", "sample")):
                    totals[column] += mine
        print(f"\n{dtype}, {args.threads} threads, context {args.context}: ms per step, and torch's time over ours")
        print(f"{'M':22s}" + "".join(f"{m:>9d}       " for m in sizes))
        for name, cells in table.items():
            print(f"{name:22s}" + " ".join(cells))
        print(f"{'greedy decode step':22s}" + "".join(f"{total:9.2f}       " for total in totals))


if __name__ == "__main__":
    main()
