"""Builder of a ``tokenizer.json`` document from the metadata of a GGUF file. Pure: metadata in, document out.

There are two kinds of vocabulary. ``gpt2`` is byte-level BPE with merges. ``llama`` is SentencePiece BPE: its merges
follow from the scores, and bytes replace text that no token covers. Tokens of the types *control* and *user-defined*
are found in the text before all others, as in llama.cpp and SentencePiece.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from octavo_api.errors import ModelError
from octavo_text.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer

_SPACE = "▁"
_PHI3_PLAIN = ("<unk>", "<s>", "<|endoftext|>")
_KINDS = ("gpt2", "llama")

Document = dict[str, Any]


class _TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """Tokens and types: ``tokens[i]`` is token ``i`` in the file's spelling, ``types[i]`` its type."""

    tokens: Sequence[str]
    types: Sequence[int]

    def ids(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)}

    def of_type(self, *types: int) -> list[tuple[int, str]]:
        return [
            (i, token) for i, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True)) if kind in types
        ]


def tokenizer_document(metadata: Mapping[str, Any]) -> Document:
    """Return the document. Raise ``ModelError`` that names the key, its value, and the known values."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in _KINDS:
        raise ModelError(f"tokenizer.ggml.model: got {kind!r}, allowed: {', '.join(_KINDS)}")
    vocabulary = _vocabulary(metadata)
    return _byte_level(metadata, vocabulary) if kind == "gpt2" else _sentencepiece(metadata, vocabulary)


def special_token(metadata: Mapping[str, Any], name: str) -> tuple[int, str] | None:
    """Return id and text of ``tokenizer.ggml.{name}_token_id``, or None if the file has no such key."""
    key = f"tokenizer.ggml.{name}_token_id"
    if (index := metadata.get(key)) is None:
        return None
    tokens = _vocabulary(metadata).tokens
    if not isinstance(index, int) or not 0 <= index < len(tokens):
        raise ModelError(f"{key}: got {index!r}, allowed: an id from 0 to {len(tokens) - 1}")
    return index, tokens[index]


def _vocabulary(metadata: Mapping[str, Any]) -> _Vocabulary:
    tokens = _list(metadata, "tokenizer.ggml.tokens")
    types = _list(metadata, "tokenizer.ggml.token_type", len(tokens)) if "tokenizer.ggml.token_type" in metadata else []
    return _Vocabulary(tokens, types or [_TokenType.NORMAL] * len(tokens))


def _list(metadata: Mapping[str, Any], key: str, length: int | None = None) -> list[Any]:
    value = metadata.get(key)
    if not isinstance(value, list) or not value or (length is not None and len(value) != length):
        got = f"{len(value)} elements" if isinstance(value, list) else repr(value)
        raise ModelError(f"{key}: got {got}, allowed: a list of {length or 'at least 1'}")
    return value


def _byte_level(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> Document:
    pre = _pre_tokenizer(metadata)
    merges = [_pair(merge) for merge in _list(metadata, "tokenizer.ggml.merges")]
    add_bos = metadata.get("tokenizer.ggml.add_bos_token", pre.add_bos)
    return {
        **_frame(metadata, vocabulary, add_bos=add_bos),
        "normalizer": {"type": "NFC"} if pre.nfc else None,
        "pre_tokenizer": pre.document(),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": vocabulary.ids(),
            "merges": merges,
            "ignore_merges": pre.ignore_merges,
        },
    }


def _pre_tokenizer(metadata: Mapping[str, Any]) -> PreTokenizer:
    name = metadata.get("tokenizer.ggml.pre", "default")
    if name not in PRE_TOKENIZERS:
        raise ModelError(f"tokenizer.ggml.pre: got {name!r}, allowed: {', '.join(sorted(PRE_TOKENIZERS))}")
    return PRE_TOKENIZERS[name]


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge[1:].partition(" ")
    return merge[:1] + left, right


def _sentencepiece(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> Document:
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    spaces = [{"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}]
    unknown = special_token(metadata, "unknown")
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    return {
        **_frame(metadata, vocabulary, add_bos=metadata.get("tokenizer.ggml.add_bos_token", True)),
        "normalizer": {
            "type": "Sequence",
            "normalizers": [*([{"type": "Prepend", "prepend": _SPACE}] if prefix else []), *spaces],
        },
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *(strip if prefix else []),
            ],
        },
        "model": {
            "type": "BPE",
            "vocab": vocabulary.ids(),
            "merges": _merges_by_score(vocabulary, _list(metadata, "tokenizer.ggml.scores", len(vocabulary.tokens))),
            "unk_token": unknown[1] if unknown else None,
            "fuse_unk": True,
            "byte_fallback": len(vocabulary.of_type(_TokenType.BYTE)) == 256,
        },
    }


def _merges_by_score(vocabulary: _Vocabulary, scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return every way to make a token of two, best score first.

    SentencePiece has no list of merges. It joins the pair with the best score of the result.
    """
    mergeable = dict(vocabulary.of_type(_TokenType.NORMAL))
    ids = {token: index for index, token in mergeable.items()}
    ranked = []
    for index, token in mergeable.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                ranked.append((-scores[index], index, ids[left], ids[right], left, right))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


def _frame(metadata: Mapping[str, Any], vocabulary: _Vocabulary, *, add_bos: bool) -> Document:
    """Return the common parts of both kinds: tokens found before all others, and the marks around a text."""
    bos = special_token(metadata, "bos") if add_bos else None
    eos = special_token(metadata, "eos") if metadata.get("tokenizer.ggml.add_eos_token", False) else None
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(metadata, vocabulary),
        "post_processor": _post_processor(bos, eos),
    }


def _post_processor(bos: tuple[int, str] | None, eos: tuple[int, str] | None) -> Document:
    """Return the step that puts ``bos`` before and ``eos`` after a text, each as id and text."""
    single = [*_mark(bos), {"Sequence": {"id": "A", "type_id": 0}}, *_mark(eos)]
    pair = [*single, {"Sequence": {"id": "B", "type_id": 0}}]
    tokens = {text: {"id": text, "ids": [index], "tokens": [text]} for index, text in filter(None, (bos, eos))}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}


def _mark(token: tuple[int, str] | None) -> list[Document]:
    return [{"SpecialToken": {"id": token[1], "type_id": 0}}] if token else []


def _added_tokens(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> list[Document]:
    # Phi-3's published tokenizer removes the space after its chat marks. The file has no field for this, so llama.cpp
    # recognizes it by the model's name as well.
    phi3 = metadata.get("general.architecture") == "phi3" and metadata.get("tokenizer.ggml.model") == "llama"
    special = {_TokenType.UNKNOWN, _TokenType.CONTROL}
    return [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": phi3 and vocabulary.types[index] == _TokenType.CONTROL and token not in _PHI3_PLAIN,
            "normalized": False,
            "special": vocabulary.types[index] in special,
        }
        for index, token in vocabulary.of_type(*special, _TokenType.USER_DEFINED)
        if token
    ]
