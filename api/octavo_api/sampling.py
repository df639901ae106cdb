"""Parameters of the choice of the next token: one definition for HTTP, gRPC, gateway and engine."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Self

from octavo_api.errors import InvalidRequest
from octavo_api.v1 import sampling_pb2

MAX_N = 64
MAX_LOGPROBS = 20
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 1024

_EMPTY: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one request. A value out of range raises an ``InvalidRequest`` that names the field.

    ``max_tokens`` and ``seed`` stay None until admission. There they become the rest of ``max_model_len`` and a random
    number. ``logprobs=k`` requests the log probabilities of the chosen token and of the ``k`` best; None requests none.
    ``temperature == 0`` is greedy. ``top_k == 0`` keeps all tokens.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: _EMPTY)
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        _integer("n", self.n, 1, MAX_N)
        _number("temperature", self.temperature, 0, 2)
        _integer("top_k", self.top_k, 0, 2**31 - 1)
        _number("top_p", self.top_p, 0, 1, above=True)
        _number("min_p", self.min_p, 0, 1)
        _integer("seed", self.seed, 0, 2**64 - 1)
        _number("repetition_penalty", self.repetition_penalty, 0, 10, above=True)
        _number("presence_penalty", self.presence_penalty, -2, 2)
        _number("frequency_penalty", self.frequency_penalty, -2, 2)
        _integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _integer("min_tokens", self.min_tokens, 0, 2**31 - 1)
        _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        _integer("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequest.field("stop_token_ids", len(self.stop_token_ids), f"at most {MAX_STOP_TOKEN_IDS} ids")
        for token in self.stop_token_ids:
            _integer("stop_token_ids", token, 0, 2**31 - 1)
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidRequest.field("logit_bias", len(self.logit_bias), f"at most {MAX_LOGIT_BIAS} tokens")
        for token, bias in self.logit_bias.items():
            _integer("logit_bias", token, 0, 2**31 - 1)
            _number(f"logit_bias[{token}]", bias, -100, 100)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest.field(
                "min_tokens", self.min_tokens, f"at most {self.max_tokens}, the value of max_tokens"
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def with_(self, **changes: Any) -> Self:
        """Return a copy with ``changes``, checked again."""
        return replace(self, **changes)

    def to_proto(self) -> sampling_pb2.SamplingParams:
        message = sampling_pb2.SamplingParams(logit_bias=self.logit_bias, stop_token_ids=self.stop_token_ids)
        for name in _SCALARS:
            value = getattr(self, name)
            if value is not None:
                setattr(message, name, value)
        return message

    @classmethod
    def from_proto(cls, message: sampling_pb2.SamplingParams, defaults: Mapping[str, Any] | None = None) -> Self:
        """Read a message. The model's ``defaults`` replace fields that are not set."""
        values: dict[str, Any] = dict(defaults or {})
        values.update({name: getattr(message, name) for name in _SCALARS if message.HasField(name)})
        if message.logit_bias:
            values["logit_bias"] = dict(message.logit_bias)
        if message.stop_token_ids:
            values["stop_token_ids"] = tuple(message.stop_token_ids)
        return cls(**values)


_SCALARS = tuple(f.name for f in fields(SamplingParams) if f.name not in ("logit_bias", "stop_token_ids"))


def _number(name: str, value: Any, low: float, high: float, *, above: bool = False) -> None:
    interval = f"a number above {low}, up to {high}" if above else f"a number from {low} to {high}"
    numeric = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not numeric or not low <= value <= high or (above and value == low):
        raise InvalidRequest.field(name, value, interval)


def _integer(name: str, value: Any, low: int, high: int) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidRequest.field(name, value, f"an integer from {low} to {high}")
