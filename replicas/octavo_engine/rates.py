"""Measurements of the engine's speed: the prefill rate, and the time of a decode step.

The router derives predicted waits from them. So they must be right under a mix of work, and be 0 before the first
measurement.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from octavo_engine.core.plan import RowWork

_KEEP = 0.9


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measured rates and seconds. 0 is "not measured yet". ``step_s`` is the time of the last step."""

    prefill_tokens_per_s: float = 0.0
    decode_step_s: float = 0.0
    step_s: float = 0.0


class StepRates:
    """Rates learned from every step.

    A row that computes one token costs as much as a decode, whatever it is, so it counts as one. A step of such rows
    alone is a decode step. ``decode_step_s`` is the moving average of decode steps (weight of the newest: 1 - 0.9).

    The prefill rate is a quotient of two decayed sums, tokens over seconds. So a step of many tokens weighs more than a
    step of a few, in which fixed costs prevail. In a mixed step, ``decode_step_s`` seconds count for the decodes, at
    most half of the step. So an average of larger batches cannot reduce the prefill's time to nothing.
    """

    def __init__(self) -> None:
        self._prefill_tokens = 0.0
        self._prefill_s = 0.0
        self._decode_step_s = 0.0
        self._step_s = 0.0

    def observe(self, work: Sequence[RowWork], seconds: float) -> None:
        """Record one executed step that took ``seconds``."""
        tokens = sum([item.count for item in work])
        self._step_s = seconds
        if tokens == 0:
            return
        if tokens == len(work):
            self._observe_decode(seconds)
        else:
            decodes = sum([item.count == 1 for item in work])
            self._observe_prefill(tokens - decodes, decodes, seconds)

    def _observe_decode(self, seconds: float) -> None:
        known = self._decode_step_s
        self._decode_step_s = _KEEP * known + (1 - _KEEP) * seconds if known else seconds

    def _observe_prefill(self, tokens: int, decodes: int, seconds: float) -> None:
        decode_s = min(self._decode_step_s, seconds / 2) if decodes else 0.0
        self._prefill_tokens = _KEEP * self._prefill_tokens + tokens
        self._prefill_s = _KEEP * self._prefill_s + seconds - decode_s

    @property
    def measurements(self) -> Measurements:
        return Measurements(
            prefill_tokens_per_s=self._prefill_tokens / self._prefill_s if self._prefill_s else 0.0,
            decode_step_s=self._decode_step_s,
            step_s=self._step_s,
        )
