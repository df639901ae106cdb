"""The bodies of OpenAI's requests, with vLLM's extras, and their conversion to calls.

A field's ``description`` is the allowed value in its error message. Sampling fields have any type here, because
``SamplingParams`` checks them, for gRPC as well. Unknown fields are rejected: no field is ignored in silence.
"""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from octavo_api.errors import InvalidRequest
from octavo_api.sampling import MAX_LOGPROBS, SamplingParams


def _without_nulls(value: Any) -> Any:
    return {name: item for name, item in value.items() if item is not None} if isinstance(value, dict) else value


def _must_be_empty(value: Any) -> Any:
    if value not in ([], {}):
        raise ValueError("not empty")
    return value


_BOOLEAN = "true or false"
_TEXT = "a string"


class Body(BaseModel):
    """Base of all bodies: strict, without unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Self:
        """Check a JSON object without nulls. Raise ``InvalidRequest`` that names the first wrong field."""
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            raise _explain(error, cls, body) from None


class StreamOptions(Body):
    include_usage: bool = Field(False, description=_BOOLEAN)
    include_obfuscation: Literal[False] = Field(False, description="false")


class ResponseFormat(Body):
    type: Literal["text"] = Field(description="'text'")


class ContentPart(Body):
    type: Literal["text"] = Field(description="'text'")
    text: str = Field(description=_TEXT)


class Message(Body):
    role: Literal["system", "developer", "user", "assistant"] = Field(
        description="'system', 'developer', 'user' or 'assistant'"
    )
    content: str | list[ContentPart] = Field(description="a string or a list of text parts")
    name: str | None = Field(None, description=_TEXT)
    tool_calls: Annotated[list[Any], BeforeValidator(_must_be_empty)] = Field(
        [], description="none: no tools are supported"
    )
    annotations: Annotated[list[Any], BeforeValidator(_must_be_empty)] = Field([], description="none")

    def for_template(self) -> dict[str, Any]:
        """Return the message in the form of chat templates: the text parts joined by newlines, as in vLLM."""
        content = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        message = {"role": "system" if self.role == "developer" else self.role, "content": content}
        return message | ({"name": self.name} if self.name is not None else {})


_NullFreeMessage = Annotated[Message, BeforeValidator(_without_nulls)]


class GenerationBody(Body):
    """Common fields of chat and plain completions."""

    model: str = Field(description="the name of a model that GET /v1/models lists")
    stream: bool = Field(False, description=_BOOLEAN)
    stream_options: Annotated[StreamOptions, BeforeValidator(_without_nulls)] | None = Field(
        None, description="an object with include_usage"
    )
    stop: str | list[str] = Field([], description="a string, or a list of at most 16 strings")
    user: str | None = Field(None, description=_TEXT)
    metadata: dict[str, str] | None = Field(None, description="an object of strings")
    # Checked by SamplingParams.
    n: Any = None
    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    min_p: Any = None
    seed: Any = None
    repetition_penalty: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    max_tokens: Any = None
    min_tokens: Any = None
    logit_bias: dict[str, Any] = Field({}, description="an object of token ids to numbers from -100 to 100")
    stop_token_ids: list[Any] = Field([], description="a list of token ids")
    ignore_eos: bool = Field(False, description=_BOOLEAN)
    include_stop_str_in_output: bool = Field(False, description=_BOOLEAN)
    skip_special_tokens: bool = Field(True, description=_BOOLEAN)
    return_token_ids: bool = Field(False, description=_BOOLEAN)
    cache_salt: str = Field("", max_length=256, description="a string of at most 256 characters")
    priority: int = Field(0, ge=-(2**31), lt=2**31, description="an integer of 32 bits")

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def sampling(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """Return the client's parameters, with the model's ``defaults`` for the others. Raise ``InvalidRequest``."""
        return SamplingParams(**{**defaults, **self._sampling()})

    def _sampling(self) -> dict[str, Any]:
        values: dict[str, Any] = {name: getattr(self, name) for name in _SAMPLING if name in self.model_fields_set}
        if self.logit_bias:
            values["logit_bias"] = {_token(name): bias for name, bias in self.logit_bias.items()}
        if self.stop_token_ids:
            values["stop_token_ids"] = tuple(self.stop_token_ids)
        if values.get("top_k") == -1:
            values["top_k"] = 0
        return values

    def check_combinations(self) -> Self:
        """Reject fields that do not go together."""
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest.field("stream_options", self.stream_options.model_dump(), "only with stream: true")
        return self


_SAMPLING = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "max_tokens",
    "min_tokens",
    "ignore_eos",
)


def _token(name: str) -> int:
    if not (name.isascii() and name.isdecimal() and len(name) < 11):
        raise InvalidRequest.field("logit_bias", name, "token ids as keys")
    return int(name)


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: list[_NullFreeMessage] = Field(min_length=1, description="a list of at least one message")
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31, description="an integer from 1 to 2147483647")
    logprobs: bool = Field(False, description=_BOOLEAN)
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description=f"an integer from 0 to {MAX_LOGPROBS}, with logprobs: true"
    )
    response_format: ResponseFormat | None = Field(None, description="{'type': 'text'}")
    add_generation_prompt: bool = Field(True, description=_BOOLEAN)
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="an object")
    safety_identifier: str | None = Field(None, description=_TEXT)
    # Accepted only at values without effect.
    store: Literal[False] = Field(False, description="false")
    service_tier: Literal["auto", "default"] = Field("auto", description="'auto' or 'default'")
    tools: Annotated[list[Any], BeforeValidator(_must_be_empty)] = Field([], description="[] (no tools are supported)")
    tool_choice: Literal["none", "auto"] = Field("none", description="'none' or 'auto' (no tools are supported)")
    parallel_tool_calls: bool = Field(True, description=_BOOLEAN)
    modalities: list[Literal["text"]] = Field(["text"], min_length=1, max_length=1, description="['text']")

    def _sampling(self) -> dict[str, Any]:
        values = super()._sampling()
        if self.max_completion_tokens is not None:
            values["max_tokens"] = self.max_completion_tokens
        if self.logprobs:
            values["logprobs"] = self.top_logprobs or 0
        return values

    def check_combinations(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest.field("top_logprobs", self.top_logprobs, "only with logprobs: true")
        return super().check_combinations()


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]] = Field(
        description="a string, a list of strings, a list of token ids, or a list of lists of token ids"
    )
    echo: bool = Field(False, description=_BOOLEAN)
    logprobs: Any = None
    best_of: int | None = Field(None, description="the same as n")
    add_special_tokens: bool = Field(True, description=_BOOLEAN)

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts in order, one or more."""
        one = isinstance(self.prompt, str) or (bool(self.prompt) and isinstance(self.prompt[0], int))
        return cast(list[str | list[int]], [self.prompt] if one else self.prompt)

    @property
    def only_echo(self) -> bool:
        """True if ``max_tokens`` is 0 with ``echo``, for the log probabilities of the prompt itself.

        The engine then makes one token, and the client does not see it.
        """
        return self.echo and self.max_tokens == 0 and not isinstance(self.max_tokens, bool)

    def sampling(self, defaults: Mapping[str, Any]) -> SamplingParams:
        return super().sampling({"max_tokens": DEFAULT_COMPLETION_TOKENS, **defaults})

    def _sampling(self) -> dict[str, Any]:
        values = super()._sampling()
        if self.logprobs is not None:
            values["logprobs"] = self.logprobs
            if self.echo:
                values["prompt_logprobs"] = self.logprobs
        if self.only_echo:
            values["max_tokens"] = 1
        return values

    def check_combinations(self) -> Self:
        if not 1 <= len(self.prompts) <= MAX_PROMPTS:
            raise InvalidRequest.field("prompt", f"{len(self.prompts)} prompts", f"1 to {MAX_PROMPTS} prompts")
        if self.best_of is not None and self.best_of != (1 if self.n is None else self.n):
            raise InvalidRequest.field("best_of", self.best_of, "the same as n")
        return super().check_combinations()


MAX_PROMPTS = 1024
DEFAULT_COMPLETION_TOKENS = 16
"""Maximum tokens of a completion by default, as in OpenAI and vLLM. A chat continues to the end of the context."""


class TokenizeBody(Body):
    """POST /tokenize, in vLLM's shape: one of ``prompt`` and ``messages``."""

    model: str | None = Field(None, description="the name of a model that GET /v1/models lists")
    prompt: str | None = Field(None, description=_TEXT)
    messages: list[_NullFreeMessage] | None = Field(None, min_length=1, description="a list of at least one message")
    add_special_tokens: bool = Field(True, description=_BOOLEAN)
    add_generation_prompt: bool = Field(True, description=_BOOLEAN)
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="an object")
    return_token_strs: bool = Field(False, description=_BOOLEAN)


class DetokenizeBody(Body):
    """POST /detokenize, in vLLM's shape."""

    model: str | None = Field(None, description="the name of a model that GET /v1/models lists")
    tokens: list[int] = Field(description="a list of token ids")


def _explain(error: ValidationError, model: type[BaseModel], body: dict[str, Any]) -> InvalidRequest:
    """Convert pydantic's error into ours: the field by its path, the value given, and the allowed value.

    A union has one error for each member. Of several errors the one deepest in our models is the most precise.
    """
    found = [_walk(item["loc"], item["type"] == "extra_forbidden", model, body) for item in error.errors()]
    return max(found, key=lambda item: item[0])[1]


def _walk(loc: tuple[int | str, ...], extra: bool, model: type[BaseModel], body: Any) -> tuple[int, InvalidRequest]:
    depth, path, value, allowed = 0, "", body, "one JSON object"
    section: type[BaseModel] | None = model
    for part in loc:
        if isinstance(part, int) and isinstance(value, list) and part < len(value):
            path, value = f"{path}[{part}]", value[part]
        elif isinstance(part, str) and section is not None and part in section.model_fields:
            field = section.model_fields[part]
            depth += 1
            path = f"{path}.{part}" if path else part
            allowed = field.description or allowed
            if not isinstance(value, dict) or value.get(part) is None:
                return depth, InvalidRequest(f"{path}: required, not given; allowed: {allowed}", param=path)
            value = value[part]
            section = _section(field.annotation)
        elif extra and section is not None and part == loc[-1]:
            return depth, _unknown(f"{path}.{part}" if path else str(part), str(part), section)
    return depth, InvalidRequest.field(path, value, allowed)


def _unknown(path: str, name: str, section: type[BaseModel]) -> InvalidRequest:
    close = difflib.get_close_matches(name, section.model_fields, n=1)
    hint = f"did you mean {close[0]}?" if close else f"allowed: {', '.join(sorted(section.model_fields))}"
    return InvalidRequest(f"{path}: unknown or unsupported parameter; {hint}", param=path)


def _section(annotation: Any) -> type[BaseModel] | None:
    """Return the model inside of ``X | None``, ``list[X]`` and ``Annotated``, or None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if (found := _section(argument)) is not None:
            return found
    return None
