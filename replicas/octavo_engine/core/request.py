"""Requests that the core accepts, and the outputs that it returns."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from octavo_api.blocks import BlockHash
from octavo_api.errors import RequestError
from octavo_api.finish_reason import FinishReason
from octavo_api.sampling import SamplingParams
from octavo_engine.core.plan import Logprobs


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A prompt. ``hashes`` has one for each full block of ``token_ids`` (None: the core computes them).

    ``deadline`` uses the clock of ``now``. ``request_id`` is unique among requests that have not ended.
    """

    request_id: Hashable
    token_ids: Sequence[int]
    hashes: Sequence[BlockHash] | None
    sampling: SamplingParams
    priority: int = 0
    cache_salt: str = ""
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds from arrival to first admission, from there to the first token, and from there to the end."""

    queue_s: float
    prefill_s: float
    decode_s: float
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """Output of one choice. The last output of a choice, and no other, has a ``finish_reason``.

    The request's first output has ``cached_tokens``, its very last one ``timing``. ``prompt_logprobs`` has an entry for
    each prompt token except the first, over as many outputs of choice 0 as there were chunks.
    """

    request_id: Hashable
    choice: int
    token_ids: tuple[int, ...]
    logprobs: tuple[Logprobs, ...] = ()
    prompt_logprobs: tuple[Logprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    cached_tokens: int | None = None
    error: RequestError | None = None
    timing: Timing | None = None
