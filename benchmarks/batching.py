"""What continuous batching, paging and chunked prefill bring: each a ratio on one engine with one switch changed.

python benchmarks/batching.py [continuous] [waste] [chunked]
"""

import random
from collections.abc import Callable, Sequence

import drive
from drive import Job, fresh_core

from octavo_engine.core.engine_core import EngineCore
from octavo_engine.startup.loading import LoadedEngine

ROWS = 16


def skewed_lengths(count: int, rng: random.Random) -> list[int]:
    """Output lengths with a long tail, as served traffic has: log-normal, median 24, sigma 1.2, at most 512."""
    return [min(512, max(2, round(24 * rng.lognormvariate(0, 1.2)))) for _ in range(count)]


def continuous(loaded: LoadedEngine) -> None:
    """Continuous ÷ static batching at 16 rows. Static admits the next batch only when the last has ended."""
    rng = random.Random(0)
    lengths = skewed_lengths(8 * ROWS, rng)
    prompts = [drive.prompt(32, rng, loaded.vocab_size) for _ in lengths]

    def jobs(part: slice = slice(None)) -> list[Job]:
        return [Job(f"r{i}", p, n) for i, (p, n) in list(enumerate(zip(prompts, lengths, strict=True)))[part]]

    core = fresh_core(loaded, max_num_seqs=ROWS, enable_prefix_caching=False)
    static_s = sum(drive.run(core, loaded, jobs(slice(i, i + ROWS))) for i in range(0, len(lengths), ROWS))
    continuous_s = drive.run(fresh_core(loaded, max_num_seqs=ROWS, enable_prefix_caching=False), loaded, jobs())
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


def waste(loaded: LoadedEngine) -> None:
    """Share of allocated KV slots that hold nothing, at a mean length of 250 tokens."""
    rng = random.Random(1)
    jobs = [
        Job(f"r{i}", drive.prompt(rng.randint(100, 200), rng, loaded.vocab_size), rng.randint(50, 150))
        for i in range(48)
    ]
    block_size = loaded.core_config.block_size
    allocated = used = 0

    def count(core: EngineCore) -> None:
        nonlocal allocated, used
        allocated += core.load().kv_blocks_pinned * block_size
        used += sum(seq.num_computed_tokens for seq in core._scheduler.running if seq.row is not None)

    drive.run(fresh_core(loaded, max_num_seqs=ROWS), loaded, jobs, count)
    drive.report(
        "KV slots allocated and not used",
        {
            "block size": block_size,
            "mean length, prompt + output": sum(len(j.prompt) + j.output_len for j in jobs) / len(jobs),
            "waste, percent": 100 * (1 - used / allocated),
        },
    )


def chunked(loaded: LoadedEngine) -> None:
    """p99 inter-token latency of 8 decoding streams while 2,000-token prompts arrive: chunked ÷ unchunked."""
    latencies = {}
    for name, threshold in (("chunked", 256), ("unchunked", 0)):
        rng = random.Random(2)
        streams = [Job(f"stream{i}", drive.prompt(32, rng, loaded.vocab_size), 160) for i in range(8)]
        long = [Job(f"long{i}", drive.prompt(2000, rng, loaded.vocab_size), 4, 1.0 + 6.0 * i) for i in range(4)]
        core = fresh_core(loaded, long_prefill_token_threshold=threshold, max_num_batched_tokens=4096)
        drive.run(core, loaded, streams + long)
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


PARTS: dict[str, Callable[[LoadedEngine], None]] = {"continuous": continuous, "waste": waste, "chunked": chunked}


def main(argv: Sequence[str] | None = None) -> None:
    parser = drive.arguments(__doc__ or "")
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parts = drive.choose(parser.parse_args(argv).parts, PARTS)
    loaded = drive.load(max_num_seqs=64, max_num_batched_tokens=4096, max_model_len=4096)
    for part in parts:
        PARTS[part](loaded)


if __name__ == "__main__":
    main()
