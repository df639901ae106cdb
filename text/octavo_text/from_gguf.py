"""Reader of the text side of a GGUF file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo_api.errors import ModelError
from octavo_text.description import TextDescription, read_tokenizer, sampling_defaults
from octavo_text.document_cache import cached_tokenizer
from octavo_text.gguf_metadata import read_gguf_metadata
from octavo_text.gguf_tokenizer import special_token, tokenizer_document

_SPECIAL = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
_ENDS = ("eos", "eot", "eom")
_SAMPLING = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


def describe_gguf(path: Path, cache: Path) -> TextDescription:
    """Read ``path`` and keep the converted tokenizer in the folder ``cache``.

    Raise ``ModelError`` that names the file and the problem.
    """
    metadata = read_gguf_metadata(path)
    values = metadata.values

    def convert() -> str:
        return json.dumps(tokenizer_document(values), ensure_ascii=False)

    try:
        marks = {name: token for name in {*_SPECIAL, *_ENDS} if (token := special_token(values, name)) is not None}
        architecture = values.get("general.architecture", "")
        return TextDescription(
            tokenizer=read_tokenizer(lambda: cached_tokenizer(cache, metadata.digest, convert), "tokenizer.ggml"),
            special_tokens={_SPECIAL[name]: text for name, (_, text) in marks.items() if name in _SPECIAL},
            bos_token_id=marks["bos"][0] if "bos" in marks else None,
            eos_token_ids=frozenset(marks[name][0] for name in _ENDS if name in marks),
            vocab_size=len(values["tokenizer.ggml.tokens"]),
            max_position_embeddings=values.get(f"{architecture}.context_length"),
            chat_templates=_chat_templates(values),
            sampling_defaults=sampling_defaults(
                {name: values[key] for name, key in _SAMPLING.items() if key in values}, "general.sampling"
            ),
        )
    except ModelError as error:
        raise ModelError(f"{path}: {error.message}") from None


def _chat_templates(values: Mapping[str, Any]) -> Mapping[str, str]:
    default = values.get("tokenizer.chat_template")
    if default is None:
        return {}
    named = {name: values.get(f"tokenizer.chat_template.{name}") for name in values.get("tokenizer.chat_templates", [])}
    return {**{name: source for name, source in named.items() if isinstance(source, str)}, "default": default}
