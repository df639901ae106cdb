"""Gain of prefix-aware routing: two replicas, 200 requests over 20 shared prefixes, `prefix` beside `round_robin`.

Once with a cache that holds everything, once with a pool that holds 12 of the 20 prefixes on each replica. Requests
come in a fixed random order, --concurrency at a time; each policy starts with empty caches (engines of its own).

python benchmarks/prefix_routing.py [--prefix-len 512] [--requests 200]
"""

import asyncio
import random
import statistics
from dataclasses import dataclass

import client
import drive
import processes

BLOCK = 16
SUFFIX_LEN, OUTPUT_LEN = 32, 8
VOCAB_SIZE = 49152
KV_BYTES_PER_TOKEN = {"float32": 30 * 2 * 3 * 64 * 4, "bfloat16": 30 * 2 * 3 * 64 * 2}


@dataclass(frozen=True, slots=True)
class Result:
    cached_share: float
    ttft_p50_s: float
    exact_predictions: float
    prediction_error_p95_tokens: float


async def play(url: str, prompts: list[list[int]], concurrency: int) -> Result:
    gate = asyncio.Semaphore(concurrency)

    async def one(session: client.aiohttp.ClientSession, prompt: list[int]) -> client.Answer:
        async with gate:
            return await client.complete(session, url, prompt, max_tokens=OUTPUT_LEN, ignore_eos=True)

    async with client.session() as session:
        answers = await asyncio.gather(*(one(session, prompt) for prompt in prompts))
    failed = [answer.error for answer in answers if answer.error or not answer.usage]
    assert not failed, failed[:3]
    cached = sum(answer.usage["prompt_tokens_details"]["cached_tokens"] for answer in answers)
    errors = [abs(a.route["predicted_cached_tokens"] - a.route["cached_tokens"]) for a in answers]
    return Result(
        cached_share=cached / sum(map(len, prompts)),
        ttft_p50_s=statistics.median(answer.ttft for answer in answers),
        exact_predictions=sum(error == 0 for error in errors) / len(errors),
        prediction_error_p95_tokens=drive.percentile(errors, 95),
    )


def main() -> None:
    parser = drive.arguments(__doc__ or "")
    parser.add_argument("--prefixes", type=int, default=20)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--prefix-len", type=int, default=512)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--dtype", default="float32", choices=list(KV_BYTES_PER_TOKEN))
    options = parser.parse_args()
    rng = random.Random(3)
    prefixes = [drive.prompt(options.prefix_len, rng, VOCAB_SIZE) for _ in range(options.prefixes)]
    order = [i % options.prefixes for i in range(options.requests)]
    rng.shuffle(order)
    prompts = [prefixes[i] + drive.prompt(SUFFIX_LEN, rng, VOCAB_SIZE) for i in order]
    for name, held in (("ample cache", 10 * options.prefixes), ("a pool of 12 prefixes", 12)):
        tokens = held * (options.prefix_len + SUFFIX_LEN + OUTPUT_LEN + BLOCK)
        engine = [
            f"kv_cache_memory_bytes={tokens * KV_BYTES_PER_TOKEN[options.dtype]}",
            f"dtype={options.dtype}",
            "num_threads=1",
            "max_model_len=2048",
        ]
        results = {}
        for policy in ("round_robin", "prefix"):
            with processes.stack(replicas=2, engine=engine, router=[f"policy={policy}"]) as stack:
                results[policy] = asyncio.run(play(stack.url, prompts, options.concurrency))
        prefix, base = results["prefix"], results["round_robin"]
        drive.report(
            f"prefix-aware routing, {name}",
            {
                "prompt tokens from cache, prefix": prefix.cached_share,
                "prompt tokens from cache, round_robin": base.cached_share,
                "ratio": prefix.cached_share / base.cached_share,
                "p50 time to first token, prefix, s": prefix.ttft_p50_s,
                "p50 time to first token, round_robin, s": base.ttft_p50_s,
                "predicted = actual cached tokens, share": prefix.exact_predictions,
                "p95 of |predicted - actual|, tokens": prefix.prediction_error_p95_tokens,
            },
        )


if __name__ == "__main__":
    main()
