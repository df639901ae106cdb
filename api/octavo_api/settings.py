"""Settings of engine and router: one typed definition.

The command line's flags (``--set engine.max_num_seqs=64``), the resource's ``spec.engine`` and ``spec.router``
(lowerCamelCase), Serve's ``user_config`` and the reference page in ``docs/`` are all generated from these classes.
Names are vLLM's where the meaning is the same.
"""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated, Any, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from octavo_api.errors import ConfigurationError
from octavo_api.rules import Rule, Ruled


class Change(StrEnum):
    """Effect of a change of a field on a running deployment."""

    LIVE = "live"
    ROLLING = "rolling"
    NEW_CLUSTER = "new cluster"
    IMMUTABLE = "immutable"


class Dtype(StrEnum):
    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


class SchedulingPolicy(StrEnum):
    FCFS = "fcfs"
    PRIORITY = "priority"


class RoutingPolicy(StrEnum):
    PREFIX = "prefix"
    LEAST_LOAD = "least_load"
    ROUND_ROBIN = "round_robin"


_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_QUANTITY = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,9})?)(k|M|G|T|Ki|Mi|Gi|Ti)?B?")


def parse_bytes(value: object) -> object:
    """Convert a Kubernetes quantity (``4Gi``, ``500M``) to bytes. Return other types unchanged for the type check."""
    if not isinstance(value, str):
        return value
    if (match := _QUANTITY.fullmatch(value)) is None:
        raise ValueError("must be a number of bytes or a quantity like 4Gi or 500M")
    return int(Fraction(match[1]) * _UNITS[match[2] or ""])


Bytes = Annotated[
    int,
    BeforeValidator(parse_bytes, json_schema_input_type=int | Annotated[str, Field(pattern=f"^{_QUANTITY.pattern}$")]),
]
"""An integer, or a string with a Kubernetes suffix."""


def setting(default: Any, description: str, *, change: Change, unit: str = "", auto: str = "", **limits: Any) -> Any:
    """Declare a setting. ``auto`` describes the value that replaces the default None."""
    extra: dict[str, Any] = {"x-octavo-change": change.value}
    if unit:
        extra["x-octavo-unit"] = unit
    if auto:
        extra["x-octavo-auto"] = auto
    return Field(default, description=description, json_schema_extra=extra, **limits)


def change_of(model: type[BaseModel], name: str) -> Change:
    """Return the effect of a change of the setting ``name``."""
    extra = model.model_fields[name].json_schema_extra
    assert isinstance(extra, dict)
    return Change(str(extra["x-octavo-change"]))


class Settings(Ruled):
    """Base of the settings: frozen and strict. It rejects unknown fields, and reads snake_case and lowerCamelCase."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    @classmethod
    def read(cls, values: Mapping[str, Any], *, where: str) -> Self:
        """Check ``values``. Raise a ``ConfigurationError`` with ``where.field``, the given and the allowed values."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigurationError(explain(error, cls, where)) from None


DEFAULT_MAX_NUM_SEQS = 128
DEFAULT_MAX_NUM_BATCHED_TOKENS = 2048


class EngineSettings(Settings):
    """Settings of one replica's engine."""

    RULES = (
        Rule(
            "maxNumSeqs must not exceed maxNumBatchedTokens: each running sequence takes a token in each step",
            cel="!has(self.maxNumSeqs) || self.maxNumSeqs <= "
            f"(has(self.maxNumBatchedTokens) ? self.maxNumBatchedTokens : {DEFAULT_MAX_NUM_BATCHED_TOKENS})",
            holds=lambda self: self.num_seqs <= self.max_num_batched_tokens,
            at=".maxNumSeqs",
        ),
    )

    dtype: Dtype = setting(
        Dtype.AUTO,
        "Type of weights, activations and KV cache.",
        change=Change.ROLLING,
        auto="bfloat16, on every processor",
        strict=False,
    )
    max_model_len: int | None = setting(
        None,
        "Maximum tokens of a request, prompt and output together.",
        change=Change.ROLLING,
        unit="tokens",
        auto="the model's own limit",
        ge=16,
        le=2**24,
    )
    block_size: int = setting(
        16,
        "Tokens in one block of the KV cache.",
        change=Change.ROLLING,
        unit="tokens",
        ge=16,
        le=256,
        multiple_of=16,
    )
    kv_cache_memory_bytes: Bytes | None = setting(
        None,
        "Memory of the KV cache.",
        change=Change.ROLLING,
        unit="bytes",
        auto="on CPU the lesser of 4 GiB and a quarter of the memory limit, divided by the replicas on the node",
        ge=2**16,
    )
    max_num_batched_tokens: int = setting(
        DEFAULT_MAX_NUM_BATCHED_TOKENS,
        "Maximum tokens computed in one step.",
        change=Change.ROLLING,
        unit="tokens",
        ge=16,
        le=2**20,
    )
    max_num_seqs: int | None = setting(
        None,
        "Maximum sequences computed in one step.",
        change=Change.ROLLING,
        auto=f"{DEFAULT_MAX_NUM_SEQS}, or `maxNumBatchedTokens` if that is less",
        ge=1,
        le=8192,
    )
    long_prefill_token_threshold: int = setting(
        512,
        "Maximum tokens of one prompt in one step, so that long prompts do not delay decodes; 0 is no limit.",
        change=Change.LIVE,
        unit="tokens",
        ge=0,
        le=2**20,
    )
    enable_prefix_caching: bool = setting(
        True, "Keep blocks of ended requests and reuse them for prompts with the same prefix.", change=Change.ROLLING
    )
    max_num_queued_reqs: int = setting(
        512, "Maximum waiting requests; one more is rejected with 429.", change=Change.LIVE, ge=0, le=2**20
    )
    scheduling_policy: SchedulingPolicy = setting(
        SchedulingPolicy.FCFS,
        "Order of waiting requests: first come, first served, or `priority` of the request (lower value first; "
        "10 seconds of waiting outweigh a difference of 1).",
        change=Change.ROLLING,
        strict=False,
    )
    seed: int | None = setting(
        None,
        "Seed of the generator that draws seeds for requests without one.",
        change=Change.ROLLING,
        auto="a random number",
        ge=0,
        le=2**63 - 1,
    )
    num_threads: int | None = setting(
        None,
        "Number of threads that compute on a CPU.",
        change=Change.ROLLING,
        auto="the replica's CPUs, at most those of the cgroup",
        ge=1,
        le=1024,
    )

    @property
    def num_seqs(self) -> int:
        """Return ``max_num_seqs`` or the value of its default."""
        if self.max_num_seqs is not None:
            return self.max_num_seqs
        return min(DEFAULT_MAX_NUM_SEQS, self.max_num_batched_tokens)


class RouterSettings(Settings):
    """Settings of one gateway's router."""

    policy: RoutingPolicy = setting(
        RoutingPolicy.PREFIX,
        "How a replica is chosen: `prefix` by predicted cost with cached prefixes counted, `least_load` by predicted "
        "cost without them, `round_robin` in turn.",
        change=Change.LIVE,
        strict=False,
    )
    max_inflight_requests: int = setting(
        256,
        "Maximum requests that run in engines; further requests wait in the gateway.",
        change=Change.LIVE,
        ge=1,
        le=2**20,
    )
    max_queued_requests: int = setting(
        512,
        "Maximum requests waiting in the gateway; one more is rejected with 429, or with 503 if there is no engine.",
        change=Change.LIVE,
        ge=0,
        le=2**20,
    )
    max_body_bytes: Bytes = setting(
        4 * 2**20,
        "Largest request body; a larger one is rejected with 413, over gRPC with `RESOURCE_EXHAUSTED`. Over gRPC a "
        "change counts for gateways that start later.",
        change=Change.LIVE,
        unit="bytes",
        ge=1024,
    )
    request_timeout_seconds: int = setting(
        600,
        "Maximum seconds from a request's arrival to its end; a request that takes longer ends with 504.",
        change=Change.LIVE,
        unit="seconds",
        ge=1,
        le=86400,
    )


def explain(
    error: ValidationError,
    model: type[BaseModel],
    where: str,
    typed: Mapping[tuple[int | str, ...], str] = MappingProxyType({}),
) -> str:
    """Return one line for each error of pydantic: the field, the given value and the allowed values.

    ``model`` is the class that was validated. ``typed`` names the fields that did not come from the document, as the
    user typed them. A suggestion comes from the section of the unknown field. It has the spelling of settings for a
    field in ``typed`` and for a ``model`` of settings, otherwise the spelling of a document.
    """
    lines = []
    for item in error.errors(include_url=False):
        flag = typed.get(item["loc"])
        path = flag or ".".join([where, *(str(part) for part in item["loc"])])
        name = flag.rpartition(".")[2] if flag else str(item["loc"][-1]) if item["loc"] else where
        spell = str if issubclass(model, Settings) or flag else to_camel
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            section = _section(model, item["loc"][:-1])
            lines.append(f"{path}: unknown field{_suggestion(name, section, spell)}")
        elif item["type"] == "missing":
            lines.append(f"{path}: required, not given")
        elif item["type"] == "value_error" and isinstance(item["input"], Mapping):
            lines.append(f"{path}: {message}")  # a rule between fields of a section, which the message names
        else:
            lines.append(f"{path}: got {item['input']!r}, {_allowed(message)}")
    return "\n".join(lines)


_EXPECTED = re.compile(r"(?:[A-Z][a-z]+ should (?:be|have|(match))|must (?:be|(match))) (.*)", re.S)
"""Form of pydantic's messages and of ours: the expected value follows the verb."""


def _allowed(message: str) -> str:
    """Return ``allowed: ...`` for a message of the known form, and another message in lower case."""
    if (match := _EXPECTED.fullmatch(message)) is None:
        return message[:1].lower() + message[1:]
    value = match[3]
    for words, short in (("greater than or equal to", "at least"), ("less than or equal to", "at most")):
        value = value.replace(words, short)
    return f"allowed: a match of {value}" if match[1] or match[2] else f"allowed: {value}"


def _section(model: type[BaseModel], path: Sequence[int | str]) -> type[BaseModel]:
    """Return the model at ``path``, whose parts are names or aliases, or the last model on the way to it."""
    for part in path:
        for name, field in model.model_fields.items():
            for inner in (field.annotation, *get_args(field.annotation)):
                if part in (name, field.alias) and isinstance(inner, type) and issubclass(inner, BaseModel):
                    model = inner
    return model


def _suggestion(name: str, model: type[BaseModel], spell: Callable[[str], str]) -> str:
    known = [*model.model_fields, *(to_camel(field) for field in model.model_fields)]
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f", allowed: {', '.join(sorted(map(spell, model.model_fields)))}"
