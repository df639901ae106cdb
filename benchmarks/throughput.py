"""Output tokens per second at 1, 16 and 64 requests: the engine alone, through the gateway, and transformers beside.

All three run the embedded model with the same dequantised weights, greedy, on the same prompts; prefill is part of the
time. Each figure is the best of --repeat runs. The engine runs in the type it takes by default, transformers in each of
--peer-dtypes, and the ratio is to the faster of them.

python benchmarks/throughput.py [--dtype auto] [--peer-dtypes float32 bfloat16] [--prompt-len 128] [--output-len 128]
"""

import asyncio
import random
import time
from collections.abc import Sequence

import client
import drive
import processes
from drive import Job


def engine_alone(dtype: str, counts: Sequence[int], prompt_len: int, output_len: int, repeat: int) -> dict[int, float]:
    loaded = drive.load(dtype=dtype, max_num_seqs=64)
    best = dict.fromkeys(counts, 0.0)
    for attempt in range(repeat):
        for count in counts:
            rng = random.Random(f"{attempt}/{count}")
            jobs = [Job(f"r{i}", drive.prompt(prompt_len, rng, loaded.vocab_size), output_len) for i in range(count)]
            seconds = drive.run(drive.fresh_core(loaded), loaded, jobs)
            best[count] = max(best[count], count * output_len / seconds)
    return best


def through_gateway(
    dtype: str, counts: Sequence[int], prompt_len: int, output_len: int, repeat: int, vocab_size: int = 49152
) -> dict[int, float]:
    best = dict.fromkeys(counts, 0.0)

    async def one(url: str, count: int, attempt: int) -> None:
        rng = random.Random(f"{attempt}/{count}")
        prompts = [drive.prompt(prompt_len, rng, vocab_size) for _ in range(count)]
        async with client.session() as session:
            start = time.monotonic()
            answers = await asyncio.gather(
                *(client.complete(session, url, p, max_tokens=output_len, ignore_eos=True) for p in prompts)
            )
            seconds = time.monotonic() - start
        tokens = sum(answer.usage["completion_tokens"] for answer in answers)
        assert tokens == count * output_len, [answer.error for answer in answers if answer.error]
        best[count] = max(best[count], tokens / seconds)

    with processes.stack(engine=[f"dtype={dtype}", "max_num_seqs=64"]) as stack:
        for attempt in range(repeat):
            for count in counts:
                asyncio.run(one(stack.url, count, attempt))
    return best


def transformers_generate(
    dtype: str, counts: Sequence[int], prompt_len: int, output_len: int, repeat: int
) -> dict[int, float]:
    import torch
    from peer import hf_model

    model = hf_model(getattr(torch, dtype))
    best = dict.fromkeys(counts, 0.0)
    for attempt in range(repeat):
        for count in counts:
            rng = random.Random(f"{attempt}/{count}")
            ids = torch.tensor([drive.prompt(prompt_len, rng, 49152) for _ in range(count)])
            start = time.monotonic()
            with torch.inference_mode():
                out = model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=False,
                    max_new_tokens=output_len,
                    min_new_tokens=output_len,
                    pad_token_id=0,
                )
            assert out.shape[1] == prompt_len + output_len
            best[count] = max(best[count], count * output_len / (time.monotonic() - start))
    return best


def main() -> None:
    parser = drive.arguments(__doc__ or "")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--peer-dtypes", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--prompt-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 16, 64])
    options = parser.parse_args()
    shape = (options.counts, options.prompt_len, options.output_len, options.repeat)
    peers = {dtype: transformers_generate(dtype, *shape) for dtype in options.peer_dtypes}
    gateway = through_gateway(options.dtype, *shape)
    alone = engine_alone(options.dtype, *shape)
    for count in options.counts:
        drive.report(
            f"output tokens/s, {count} × ({options.prompt_len} + {options.output_len}), {options.dtype}",
            {
                "engine alone": alone[count],
                "through the gateway": gateway[count],
                **{f"transformers generate, {dtype}": best[count] for dtype, best in peers.items()},
                "engine ÷ transformers": alone[count] / max(best[count] for best in peers.values()),
                "gateway ÷ engine": gateway[count] / alone[count],
            },
        )


if __name__ == "__main__":
    main()
