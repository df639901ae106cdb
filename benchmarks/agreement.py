"""Share of equal tokens of the embedded model: beside transformers, and alone beside in a batch.

* Against transformers' ``generate``: greedy, same dequantised weights, 20 prompts × 64 tokens, one prompt at a time
  there and all together here. In float32 they must be equal; the others are reported.
* With itself: 32 requests alone, and all together. They must be equal.

python benchmarks/agreement.py
"""

import random

import drive
import torch

from octavo_api.sampling import SamplingParams
from octavo_engine import LLM
from octavo_testing.engine.transformers_model import hf_model

PROMPTS, OUTPUT_LEN = 20, 64


def prompts(llm: LLM, count: int) -> list[list[int]]:
    rng = random.Random(5)
    return [drive.prompt(rng.randint(8, 64), rng, llm.vocab_size) for _ in range(count)]


def answers(llm: LLM, asked: list[list[int]], output_len: int) -> list[list[int]]:
    """Return the greedy tokens of all prompts together, computed with an empty cache."""
    llm.reset_prefix_cache()
    greedy = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
    return [result.outputs[0].token_ids for result in llm.generate(asked, greedy)]


def same(ours: list[list[int]], theirs: list[list[int]], output_len: int) -> dict[str, float]:
    """Share of answers that are equal, and of tokens before the first difference."""
    prefix = [
        next((i for i, (a, b) in enumerate(zip(x, y, strict=True)) if a != b), len(x))
        for x, y in zip(ours, theirs, strict=True)
    ]
    return {
        "equal answers": sum(n == output_len for n in prefix) / len(prefix),
        "tokens before the first difference": sum(prefix) / (len(prefix) * output_len),
    }


def beside_transformers(dtype: str, count: int, output_len: int) -> dict[str, float]:
    llm = drive.load(dtype=dtype, kv_cache_memory_bytes=2**29)
    asked = prompts(llm, count)
    ours = answers(llm, asked, output_len)
    model = hf_model(getattr(torch, dtype))
    theirs = []
    for prompt in asked:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            out = model.generate(
                ids, do_sample=False, max_new_tokens=output_len, min_new_tokens=output_len, pad_token_id=0
            )
        theirs.append(out[0, ids.shape[1] :].tolist())
    return same(ours, theirs, output_len)


def alone_and_together(dtype: str, count: int, output_len: int) -> dict[str, float]:
    llm = drive.load(dtype=dtype, kv_cache_memory_bytes=2**29)
    asked = prompts(llm, count)
    together = answers(llm, asked, output_len)
    return same(together, [answers(llm, [prompt], output_len)[0] for prompt in asked], output_len)


def main() -> None:
    parser = drive.arguments(__doc__ or "")
    parser.add_argument("--prompts", type=int, default=PROMPTS, help="prompts beside transformers")
    parser.add_argument("--batch", type=int, default=32, help="prompts alone and together")
    parser.add_argument("--output-len", type=int, default=OUTPUT_LEN)
    options = parser.parse_args()
    for dtype in ("float32", "bfloat16"):
        found = beside_transformers(dtype, options.prompts, options.output_len)
        drive.report(f"beside transformers generate, {dtype}", found)
    for dtype in ("float32", "bfloat16"):
        found = alone_and_together(dtype, options.batch, options.output_len)
        drive.report(f"alone and in a batch of {options.batch}, {dtype}", found)


if __name__ == "__main__":
    main()
