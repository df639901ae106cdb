"""The gain of continuous batching, paging and chunked prefill: each a ratio on one model with one switch changed.

python benchmarks/batching.py [continuous] [waste] [chunked]
"""

import random
import time
from collections.abc import Callable, Sequence

import drive
from drive import Job

from octavo_api.sampling import SamplingParams
from octavo_engine import LLM

ROWS = 16


def skewed_lengths(count: int, rng: random.Random) -> list[int]:
    """Output lengths with a long tail, as served traffic has: log-normal, median 24, sigma 1.2, at most 512."""
    return [min(512, max(2, round(24 * rng.lognormvariate(0, 1.2)))) for _ in range(count)]


def continuous(scale: float) -> None:
    """Continuous ÷ static batching at 16 rows. Static admits the next batch only when the last has ended."""
    llm = load(max_num_seqs=ROWS, enable_prefix_caching=False)
    rng = random.Random(0)
    lengths = skewed_lengths(max(1, round(8 * scale)) * ROWS, rng)
    prompts = [drive.prompt(32, rng, llm.vocab_size) for _ in lengths]
    samplings = [SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True) for length in lengths]

    def seconds(first: int, last: int) -> float:
        start = time.monotonic()
        llm.generate(prompts[first:last], samplings[first:last])
        return time.monotonic() - start

    static_s = sum(seconds(i, i + ROWS) for i in range(0, len(lengths), ROWS))
    continuous_s = seconds(0, len(lengths))
    batches = [lengths[i : i + ROWS] for i in range(0, len(lengths), ROWS)]
    drive.report(
        "continuous ÷ static batching, 16 rows",
        {
            "requests": len(lengths),
            "output tokens": sum(lengths),
            "static, tokens/s": sum(lengths) / static_s,
            "continuous, tokens/s": sum(lengths) / continuous_s,
            "ratio": static_s / continuous_s,
            "bound, max ÷ mean of a batch's lengths": sum(max(b) for b in batches) * ROWS / sum(lengths),
        },
    )


def waste(scale: float) -> None:
    """Share of allocated KV slots that hold nothing, at a mean length of 250 tokens."""
    llm = load(max_num_seqs=ROWS)
    rng = random.Random(1)
    jobs = [
        Job(f"r{i}", drive.prompt(rng.randint(100, 200), rng, llm.vocab_size), rng.randint(50, 150))
        for i in range(max(1, round(48 * scale)))
    ]
    core = llm.llm_engine.core
    block_size = core.config.block_size
    allocated = used = 0

    def count() -> None:
        nonlocal allocated, used
        allocated += core.load().kv_blocks_pinned * block_size
        used += sum(seq.num_computed_tokens for seq in core._scheduler.running if seq.row is not None)

    drive.run(llm.llm_engine, jobs, count)
    drive.report(
        "KV slots allocated and not used",
        {
            "block size": block_size,
            "mean length, prompt + output": sum(len(j.prompt) + j.output_len for j in jobs) / len(jobs),
            "waste, percent": 100 * (1 - used / allocated),
        },
    )


def chunked(scale: float) -> None:
    """p99 inter-token latency of 8 decoding streams while 2,000-token prompts arrive: chunked ÷ unchunked."""
    llm = load(max_num_seqs=64)
    latencies = {}
    for name, threshold in (("chunked", 256), ("unchunked", 0)):
        rng = random.Random(2)
        streams = [Job(f"s{i}", drive.prompt(32, rng, llm.vocab_size), max(4, round(160 * scale))) for i in range(8)]
        arrivals = [1.0 + 6.0 * i for i in range(max(1, round(4 * scale)))]
        long = [Job(f"long{i}", drive.prompt(2000, rng, llm.vocab_size), 4, at) for i, at in enumerate(arrivals)]
        drive.run(llm.create_engine(long_prefill_token_threshold=threshold), streams + long)
        overlapped = drive.gaps(streams)
        latencies[name] = (drive.percentile(overlapped, 99), max(overlapped), long)
    ttft = {name: max(j.token_times[0] - j.arrival_s for j in long) for name, (_, _, long) in latencies.items()}
    drive.report(
        "inter-token latency of 8 streams beside 2,000-token prompts",
        {
            "p99 chunked (256), s": latencies["chunked"][0],
            "p99 unchunked, s": latencies["unchunked"][0],
            "ratio of p99": latencies["chunked"][0] / latencies["unchunked"][0],
            "ratio of the worst": latencies["chunked"][1] / latencies["unchunked"][1],
            "time to first token of the long ones, chunked ÷ unchunked": ttft["chunked"] / ttft["unchunked"],
        },
    )


def load(**settings: object) -> LLM:
    return drive.load(max_num_batched_tokens=4096, max_model_len=4096, **settings)


PARTS: dict[str, Callable[[float], None]] = {"continuous": continuous, "waste": waste, "chunked": chunked}


def main(argv: Sequence[str] | None = None) -> None:
    parser = drive.arguments(__doc__ or "")
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the number of requests")
    options = parser.parse_args(argv)
    for part in drive.choose(options.parts, PARTS):
        PARTS[part](options.scale)


if __name__ == "__main__":
    main()
