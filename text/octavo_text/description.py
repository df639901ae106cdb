"""Text properties from a model's files: tokenizer, marks, chat templates, limits, sampling defaults."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from octavo_api.errors import InvalidRequest, ModelError
from octavo_api.sampling import SamplingParams

SamplingDefaults = Mapping[str, float | int]

_SAMPLED = ("temperature", "top_k", "top_p", "min_p")


@dataclass(frozen=True, slots=True)
class TextDescription:
    """Text properties of one model. ``vocab_size`` is the number of rows of the model's embedding.

    ``special_tokens`` are the names and texts that chat templates may use. ``chat_templates`` are Jinja sources by
    name, empty if the model has none.
    """

    tokenizer: Tokenizer
    special_tokens: Mapping[str, str]
    bos_token_id: int | None
    eos_token_ids: frozenset[int]
    vocab_size: int
    max_position_embeddings: int | None
    chat_templates: Mapping[str, str]
    sampling_defaults: SamplingDefaults


def read_tokenizer(read: Callable[[], Tokenizer], source: object) -> Tokenizer:
    """Return the tokenizer of ``read``, set to encode any length. Raise ``ModelError`` that names ``source``."""
    try:
        tokenizer = read()
    except ModelError:
        raise
    except Exception as error:  # tokenizers raises nothing narrower
        raise ModelError(f"{source}: not a readable tokenizer: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def sampling_defaults(values: Mapping[str, Any], source: object) -> SamplingDefaults:
    """Return the sampling parameters for requests without their own, as vLLM's ``generation_config: auto`` does.

    ``do_sample: false`` leaves only the repetition penalty, which greedy decoding has too. Raise ``ModelError`` for
    a value that no request could have.
    """
    names = ["repetition_penalty"] if values.get("do_sample") is False else [*_SAMPLED, "repetition_penalty"]
    defaults = {name: values[name] for name in names if values.get(name) is not None}
    if defaults.get("top_k") == -1:
        defaults["top_k"] = 0
    try:
        SamplingParams(**defaults)
    except InvalidRequest as error:
        raise ModelError(f"{source}: {error.message}") from None
    return defaults
