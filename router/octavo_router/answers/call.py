"""A client's request, in the words that both front ends share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo_api.errors import InvalidRequest
from octavo_api.sampling import SamplingParams
from octavo_text import check_stops


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text to tokenize without changes."""

    text: str
    add_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids to use without changes."""

    ids: list[int]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the model's chat template."""

    messages: list[dict[str, Any]]
    add_generation_prompt: bool = True
    template_kwargs: Mapping[str, Any] | None = None


Prompt = TextPrompt | TokenPrompt | ChatPrompt


@dataclass(frozen=True, slots=True)
class Call:
    """One prompt and its parameters. The constructor checks them, except for checks that need the model.

    ``timeout_s`` is the client's own limit in seconds; the gateway's ``request_timeout_seconds`` holds as well.
    ``index`` is the prompt's number among the prompts of one HTTP request. A ``buffered`` answer is not streamed to
    the client.
    """

    request_id: str
    prompt: Prompt
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    priority: int = 0
    cache_salt: str = ""
    tenant: str = ""
    timeout_s: float | None = None
    index: int = 0
    buffered: bool = False

    def __post_init__(self) -> None:
        check_stops(self.stop)
        if not -(2**31) <= self.priority < 2**31:
            raise InvalidRequest.field("priority", self.priority, f"an integer from {-(2**31)} to {2**31 - 1}")

    @property
    def salt(self) -> str:
        """The salt that separates the prefix caches of tenants.

        A tenant's name holds no slash, so two different pairs of tenant and salt never have the same value.
        """
        return f"{self.tenant}/{self.cache_salt}" if self.tenant or self.cache_salt else ""


def check_token_ids(param: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raise ``InvalidRequest`` if one of ``ids`` is not a token of the model."""
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        wrong = next(token for token in ids if not 0 <= token < vocab_size)
        raise InvalidRequest.field(param, wrong, f"token ids from 0 to {vocab_size - 1}")
