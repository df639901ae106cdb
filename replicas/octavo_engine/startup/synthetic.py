"""An engine without a model, for load tests: real scheduler, real protocol, made-up tokens in a given time.

``python -m octavo_engine --synthetic --model synthetic://32000`` serves one. A token depends on nothing except the
token before it, its position and its choice. So a test can check a stream (``next_token``). A preempted, forked or
resubmitted request continues as it would have.
"""

import math
import re
import time
from dataclasses import dataclass

from octavo_api.errors import ModelError
from octavo_api.settings import EngineSettings
from octavo_engine.core.config import CoreConfig
from octavo_engine.core.plan import Logprobs, RowWork, Sampled, StepOutput, StepPlan

DEFAULT_NUM_BLOCKS = 4096
DEFAULT_MAX_MODEL_LEN = 8192
_URI = re.compile(r"synthetic://([1-9]\d{0,8})")


def next_token(token_id: int, position: int, choice: int, vocab_size: int) -> int:
    """Return the token that follows ``token_id`` at ``position``."""
    mixed = (token_id * 0x9E3779B1 + position * 0x85EBCA6B + choice * 0xC2B2AE35) & 0xFFFFFFFF
    return (mixed ^ mixed >> 15) % vocab_size


class SyntheticRunner:
    """A runner that sleeps ``step_time_s`` plus ``token_time_s`` for each token, for every step.

    All tokens are equally likely: a log probability is ``-ln(vocab_size)``, and the most likely are the first ones.
    """

    def __init__(self, vocab_size: int, *, step_time_s: float = 0.0, token_time_s: float = 0.0) -> None:
        self._vocab_size = vocab_size
        self._step_time_s = step_time_s
        self._token_time_s = token_time_s
        self._logprob = -math.log(vocab_size)
        self._rows: dict[int, _Row] = {}

    def execute(self, plan: StepPlan) -> StepOutput:
        rows = self._rows
        for row in plan.leaves:
            rows.pop(row, None)
        for join in plan.joins:
            rows[join.row] = _Row(
                last=join.token_ids[-1],
                prompt=join.token_ids[: join.prompt_len],
                choice=join.choice,
                logprobs=join.sampling.logprobs,
                prompt_logprobs=join.sampling.prompt_logprobs,
            )
        sampled: list[Sampled] = []
        prompt_logprobs = {}
        for work in plan.work:
            if work.choices:
                sampled.extend(self._sample(work))
            if work.prompt_logprobs:
                prompt_logprobs[work.row] = self._score_prompt(work)
        duration = self._step_time_s + self._token_time_s * plan.num_tokens
        if duration:
            time.sleep(duration)
        return StepOutput(plan.step_id, tuple(sampled), prompt_logprobs)

    def _sample(self, work: RowWork) -> list[Sampled]:
        row = self._rows[work.row]
        last, position = row.last, work.start + work.count - 1
        sampled = []
        for choice in work.choices:
            token = next_token(last, position, choice, self._vocab_size)
            if choice == row.choice:
                row.last = token
            logprobs = None if row.logprobs is None else self._logprobs(token, row.logprobs)
            sampled.append(Sampled(work.row, choice, token, logprobs))
        return sampled

    def _score_prompt(self, work: RowWork) -> tuple[Logprobs, ...]:
        row = self._rows[work.row]
        scored = row.prompt[work.start + 1 : work.start + work.count + 1]
        return tuple(self._logprobs(token, row.prompt_logprobs or 0) for token in scored)

    def _logprobs(self, token: int, count: int) -> Logprobs:
        top = tuple((other, self._logprob) for other in range(min(count, self._vocab_size)))
        return Logprobs(token, self._logprob, top)


@dataclass(slots=True)
class _Row:
    last: int
    prompt: tuple[int, ...]
    choice: int
    logprobs: int | None
    prompt_logprobs: int | None


@dataclass(frozen=True, slots=True)
class SyntheticEngine:
    """The parts of a loaded engine that ``EngineServer.start`` needs."""

    core_config: CoreConfig
    runner: SyntheticRunner
    model_key: str
    kv_dtype: str
    max_model_len: int
    vocab_size: int


def load_synthetic(
    uri: str,
    settings: EngineSettings,
    *,
    num_blocks: int = DEFAULT_NUM_BLOCKS,
    step_time_s: float = 0.0,
    token_time_s: float = 0.0,
    steps_in_flight: int = 1,
) -> SyntheticEngine:
    """Make an engine for ``synthetic://VOCAB_SIZE``; any other address raises ``ModelError``."""
    match = _URI.fullmatch(uri)
    if match is None:
        raise ModelError(f"--model: got {uri!r}, allowed with --synthetic: synthetic://VOCAB_SIZE")
    vocab_size = int(match[1])
    max_model_len = settings.max_model_len or DEFAULT_MAX_MODEL_LEN
    config = CoreConfig.from_settings(
        settings,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        eos_token_ids=frozenset(),
        model_key=uri,
        kv_dtype="none",
        steps_in_flight=steps_in_flight,
    )
    runner = SyntheticRunner(vocab_size, step_time_s=step_time_s, token_time_s=token_time_s)
    return SyntheticEngine(config, runner, uri, "none", max_model_len, vocab_size)
