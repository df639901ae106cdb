"""Reader of the text side of a folder in Hugging Face's layout."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from octavo_api.errors import ModelError
from octavo_text.description import TextDescription, read_tokenizer, sampling_defaults

_Json = dict[str, Any]


def describe_folder(folder: Path) -> TextDescription:
    """Read ``folder``. Raise ``ModelError`` that names the file and the problem."""
    config = _read(folder / "config.json")
    text_config = config.get("text_config", config)
    tokenizer_config = _read(folder / "special_tokens_map.json", {}) | _read(folder / "tokenizer_config.json", {})
    generation = _read(folder / "generation_config.json", config)
    tokenizer = _tokenizer(folder / "tokenizer.json")
    special_tokens = _special_tokens(tokenizer_config)
    eos = tokenizer.token_to_id(special_tokens.get("eos_token", ""))
    return TextDescription(
        tokenizer=tokenizer,
        special_tokens=special_tokens,
        bos_token_id=_bos_token_id(tokenizer, special_tokens, config),
        eos_token_ids=frozenset(_ids(generation.get("eos_token_id"))) | ({eos} if eos is not None else set()),
        vocab_size=_integer(text_config, "vocab_size") or tokenizer.get_vocab_size(with_added_tokens=True),
        max_position_embeddings=_integer(text_config, "max_position_embeddings"),
        chat_templates=_chat_templates(folder, tokenizer_config),
        sampling_defaults=sampling_defaults(generation, folder / "generation_config.json"),
    )


def _read(path: Path, missing: _Json | None = None) -> _Json:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if missing is None:
            raise ModelError(f"{path}: no such file") from None
        return missing
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not readable JSON: {error}") from None
    if not isinstance(document, dict):
        raise ModelError(f"{path}: got a {type(document).__name__}, allowed: a JSON object")
    return document


def _tokenizer(path: Path) -> Tokenizer:
    if not path.is_file():
        raise ModelError(f"{path}: no such file; save the tokenizer with transformers' save_pretrained to make one")
    return read_tokenizer(lambda: Tokenizer.from_file(str(path)), path)


def _special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Return ``bos_token`` and similar tokens. Each is written as a string or as an object with ``content``."""
    texts = {}
    for name, value in tokenizer_config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            texts[name] = text
    return texts


def _bos_token_id(tokenizer: Tokenizer, special_tokens: Mapping[str, str], config: Mapping[str, Any]) -> int | None:
    if (text := special_tokens.get("bos_token")) is not None:
        return tokenizer.token_to_id(text)
    return _integer(config, "bos_token_id")


def _integer(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    if value is not None and (not isinstance(value, int) or value < 0):
        raise ModelError(f"config.json: {key}: got {value!r}, allowed: an integer from 0")
    return value


def _ids(value: object) -> list[int]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(not isinstance(index, int) or index < 0 for index in ids):
        raise ModelError(f"eos_token_id: got {value!r}, allowed: an id or a list of ids")
    return list(ids)


def _chat_templates(folder: Path, tokenizer_config: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the templates by name. A file ``chat_template.jinja`` goes before ``tokenizer_config.json``."""
    try:
        return {"default": (folder / "chat_template.jinja").read_text(encoding="utf-8")}
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{folder / 'chat_template.jinja'}: not readable: {error}") from None
    match tokenizer_config.get("chat_template"):
        case None:
            return {}
        case str() as source:
            return {"default": source}
        case [*entries] if all(isinstance(entry, dict) for entry in entries):
            named = {entry.get("name"): entry.get("template") for entry in entries}
            if all(isinstance(text, str) for pair in named.items() for text in pair) and "default" in named:
                return {str(name): str(source) for name, source in named.items()}
    where = folder / "tokenizer_config.json"
    raise ModelError(
        f"{where}: chat_template: allowed: a string, or a list of name and template with one named default"
    )
