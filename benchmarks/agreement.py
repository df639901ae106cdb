"""How often the embedded model gives the same tokens: beside transformers, and with itself in other company.

* Against transformers' ``generate``: greedy, same dequantised weights, 20 prompts × 64 tokens, one prompt at a time
  there and all together here. In float32 they must be equal; the others are reported.
* With itself: 32 requests alone, and all together. They must be equal.

python benchmarks/agreement.py
"""

import dataclasses
import random

import drive
import torch
from drive import Job
from peer import hf_model

from octavo_engine.startup.loading import LoadedEngine

PROMPTS, OUTPUT_LEN = 20, 64


def jobs(loaded: LoadedEngine, count: int) -> list[Job]:
    rng = random.Random(5)
    return [Job(f"r{i}", drive.prompt(rng.randint(8, 64), rng, loaded.vocab_size), OUTPUT_LEN) for i in range(count)]


def same(ours: list[list[int]], theirs: list[list[int]]) -> dict[str, float]:
    """Share of answers that are equal, and of tokens before the first difference."""
    prefix = [
        next((i for i, (a, b) in enumerate(zip(x, y, strict=True)) if a != b), len(x))
        for x, y in zip(ours, theirs, strict=True)
    ]
    return {
        "equal answers": sum(n == OUTPUT_LEN for n in prefix) / len(prefix),
        "tokens before the first difference": sum(prefix) / (len(prefix) * OUTPUT_LEN),
    }


def beside_transformers(dtype: str) -> dict[str, float]:
    loaded = drive.load(dtype=dtype, kv_cache_memory_bytes=2**29)
    ours = jobs(loaded, PROMPTS)
    drive.run(drive.fresh_core(loaded), loaded, ours)
    model = hf_model(getattr(torch, dtype))
    theirs = []
    for job in ours:
        ids = torch.tensor([list(job.prompt)])
        with torch.inference_mode():
            out = model.generate(
                ids, do_sample=False, max_new_tokens=OUTPUT_LEN, min_new_tokens=OUTPUT_LEN, pad_token_id=0
            )
        theirs.append(out[0, ids.shape[1] :].tolist())
    return same([job.tokens for job in ours], theirs)


def alone_and_together(dtype: str) -> dict[str, float]:
    loaded = drive.load(dtype=dtype, kv_cache_memory_bytes=2**29)
    together = jobs(loaded, 32)
    drive.run(drive.fresh_core(loaded), loaded, together)
    alone = [dataclasses.replace(job, tokens=[], token_times=[]) for job in together]
    for job in alone:
        drive.run(drive.fresh_core(loaded), loaded, [job])
    return same([job.tokens for job in together], [job.tokens for job in alone])


def main() -> None:
    drive.arguments(__doc__ or "").parse_args()
    for dtype in ("float32", "bfloat16"):
        drive.report(f"beside transformers generate, {dtype}", beside_transformers(dtype))
    for dtype in ("float32", "bfloat16"):
        drive.report(f"alone and in a batch of 32, {dtype}", alone_and_together(dtype))


if __name__ == "__main__":
    main()
