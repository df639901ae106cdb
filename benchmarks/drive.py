"""Offline runs of the embedded model in this process, and the figures that the benchmarks report."""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo_api.sampling import SamplingParams
from octavo_engine import LLM
from octavo_engine.core.request import NewRequest
from octavo_engine.llm_engine import LLMEngine


def load(**settings: Any) -> LLM:
    """Load the embedded model with ``settings``, on all CPUs of this process."""
    return LLM("embedded://smollm2", report=lambda text: print(text, file=sys.stderr), **settings)


@dataclass(slots=True)
class Job:
    """One request: when it arrives (seconds from the start), its prompt, and how many tokens it generates."""

    name: str
    prompt: Sequence[int]
    output_len: int
    arrival_s: float = 0.0
    token_times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def request(self) -> NewRequest:
        sampling = SamplingParams(temperature=0.0, max_tokens=self.output_len, ignore_eos=True)
        return NewRequest(request_id=self.name, token_ids=tuple(self.prompt), hashes=None, sampling=sampling)


def prompt(length: int, rng: random.Random, vocab_size: int) -> list[int]:
    return [rng.randrange(100, vocab_size) for _ in range(length)]


def run(engine: LLMEngine, jobs: Iterable[Job], after_step: Callable[[], None] = lambda: None) -> None:
    """Run ``jobs``, each from its arrival, to their end. Times in the jobs are seconds from the start."""
    waiting = sorted(jobs, key=lambda job: job.arrival_s)
    by_name = {job.name: job for job in waiting}
    start = time.monotonic()
    while waiting or engine.has_unfinished_requests:
        while waiting and waiting[0].arrival_s <= time.monotonic() - start:
            engine.add_request(waiting.pop(0).request())
        if not engine.has_unfinished_requests:
            time.sleep(0.001)
            continue
        outputs = engine.step()
        done = time.monotonic() - start
        for item in outputs:
            job = by_name[str(item.request_id)]
            job.tokens.extend(item.token_ids)
            job.token_times.extend(done for _ in item.token_ids)
        after_step()


def gaps(jobs: Iterable[Job]) -> list[float]:
    """Inter-token latencies of all jobs, seconds."""
    return [b - a for job in jobs for a, b in zip(job.token_times, job.token_times[1:], strict=False)]


def percentile(values: Sequence[float], percent: float) -> float:
    return statistics.quantiles(values, n=1000, method="inclusive")[min(998, round(percent * 10) - 1)]


def report(title: str, figures: dict[str, Any]) -> None:
    """Prints figures for people, then one line of JSON for scripts."""
    print(f"\n{title}")
    for name, value in figures.items():
        print(f"  {name:<44} {value:.4g}" if isinstance(value, float) else f"  {name:<44} {value}")
    print(json.dumps({"benchmark": title, **figures}))


def choose(names: Sequence[str], known: Iterable[str]) -> list[str]:
    """Returns the parts to run, all of them where none is named; exits where one is not known."""
    known = list(known)
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"parts: got {', '.join(unknown)}, allowed: {', '.join(known)}")
    return list(names) or known


def arguments(description: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
