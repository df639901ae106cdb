"""Rules that end a choice by its last token."""

from dataclasses import dataclass
from typing import NamedTuple

from octavo_api.finish_reason import FinishReason
from octavo_api.sampling import SamplingParams


class Finish(NamedTuple):
    """Reason of an end. ``stop_token_id`` is set if one of the request's ``stop_token_ids`` ended the choice."""

    reason: FinishReason
    stop_token_id: int | None = None


_STOP = Finish(FinishReason.STOP)
_LENGTH = Finish(FinishReason.LENGTH)


@dataclass(frozen=True, slots=True)
class StopRule:
    """Stop conditions, in this order: the model's end token, the request's stop tokens, the length."""

    eos: frozenset[int]
    stops: frozenset[int]
    min_tokens: int
    max_tokens: int

    @classmethod
    def of(cls, sampling: SamplingParams, eos_token_ids: frozenset[int]) -> "StopRule":
        """Build the rule; ``sampling.max_tokens`` must be set."""
        assert sampling.max_tokens is not None
        eos = frozenset() if sampling.ignore_eos else eos_token_ids
        return cls(eos, eos | frozenset(sampling.stop_token_ids), sampling.min_tokens, sampling.max_tokens)

    def check(self, token_id: int, num_output_tokens: int) -> Finish | None:
        """Return the end of the choice after ``token_id``, or None if it continues.

        ``num_output_tokens`` counts ``token_id``, the last of them.
        """
        if token_id in self.stops and num_output_tokens >= self.min_tokens:
            return _STOP if token_id in self.eos else Finish(FinishReason.STOP, token_id)
        return _LENGTH if num_output_tokens >= self.max_tokens else None
