"""Converted tokenizers against the library's own of the same vocabulary, and against SentencePiece's algorithm."""

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, pre_tokenizers

from octavo_api.errors import ModelError
from octavo_testing.text.corpus import HOSTILE
from octavo_testing.text.vocabularies import byte_level_values, train_byte_level
from octavo_text.gguf_metadata import read_gguf_metadata
from octavo_text.gguf_tokenizer import tokenizer_document
from octavo_text.pre_tokenizers import PRE_TOKENIZERS

# The expressions as the models' tokenizer.json have them, written out once more and not taken from the code.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    cut = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTE_LEVEL])
FAMILIES = {
    "gpt-2": (BYTE_LEVEL, {}),
    "default": (BYTE_LEVEL, {}),
    "smollm": (DIGITS, {}),
    "llama-bpe": (split(LLAMA3), {"ignore_merges": True}),
    "dbrx": (split(LLAMA3), {}),
    "qwen2": (split(QWEN2), {"nfc": True}),
    "tekken": (split(TEKKEN), {"ignore_merges": True}),
    "gpt-4o": (split(GPT4O), {}),
}


def convert(values: Mapping[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(tokenizer_document(values)))


@pytest.mark.parametrize("pre", FAMILIES)
def test_byte_level_families_encode_as_their_own_tokenizer(pre, write_gguf) -> None:
    pre_tokenizer, options = FAMILIES[pre]
    theirs = train_byte_level(pre_tokenizer, **options)
    ours = convert(read_gguf_metadata(write_gguf(byte_level_values(theirs, pre))).values)
    for text in HOSTILE:
        ids = theirs.encode(text).ids
        assert ours.encode(text, add_special_tokens=False).ids == ids, repr(text[:60])
        assert ours.decode(ids) == theirs.decode(ids)


def test_the_corpus_tells_families_apart() -> None:
    """Else the test above could not fail: with one family's vocabulary, every other cut gives other tokens."""
    values = byte_level_values(train_byte_level(BYTE_LEVEL), "gpt-2")
    of_family = {
        pre: [tuple(convert(values | {"tokenizer.ggml.pre": pre}).encode(text).ids) for text in HOSTILE]
        for pre in ("gpt-2", "smollm", "qwen2", "tekken", "gpt-4o")
    }
    assert len({tuple(ids) for ids in of_family.values()}) == len(of_family)


@pytest.mark.parametrize(("pre", "whole"), [("llama-bpe", True), ("tekken", True), ("gpt-2", False), ("qwen2", False)])
def test_words_that_are_tokens_are_taken_whole_where_the_family_says_so(pre, whole) -> None:
    values = byte_level_values(train_byte_level(BYTE_LEVEL), pre)
    values["tokenizer.ggml.tokens"] = [*values["tokenizer.ggml.tokens"], "xqzkvj"]
    values["tokenizer.ggml.token_type"] = [*values["tokenizer.ggml.token_type"], 1]
    assert (convert(values).encode("xqzkvj", add_special_tokens=False).ids == [600]) == whole


def test_unknown_pre_tokenizer_is_named_with_all_known() -> None:
    values = byte_level_values(train_byte_level(BYTE_LEVEL), "klingon")
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.pre: got 'klingon', allowed: ") as error:
        tokenizer_document(values)
    assert all(name in error.value.message for name in PRE_TOKENIZERS)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tokenizer.ggml.model": "bert"}, "tokenizer.ggml.model: got 'bert', allowed: gpt2, llama"),
        ({"tokenizer.ggml.model": None}, "tokenizer.ggml.model: got None"),
        ({"tokenizer.ggml.tokens": []}, "tokenizer.ggml.tokens: got 0 elements, allowed: a list of at least 1"),
        ({"tokenizer.ggml.tokens": 7}, "tokenizer.ggml.tokens: got 7"),
        ({"tokenizer.ggml.token_type": [1]}, "tokenizer.ggml.token_type: got 1 elements, allowed: a list of 600"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges: got None"),
        (
            {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 600},
            "tokenizer.ggml.bos_token_id: got 600, allowed: an id from 0 to 599",
        ),
    ],
)
def test_says_what_is_wrong(change, says) -> None:
    with pytest.raises(ModelError) as error:
        tokenizer_document(byte_level_values(train_byte_level(BYTE_LEVEL), "gpt-2") | change)
    assert error.value.message.startswith(says)


@pytest.mark.parametrize(("add_bos", "add_eos"), [(False, False), (True, False), (False, True), (True, True)])
def test_flags_put_bos_and_eos_around_a_text(add_bos, add_eos) -> None:
    values = byte_level_values(
        train_byte_level(BYTE_LEVEL),
        "gpt-2",
        add_bos_token=add_bos,
        add_eos_token=add_eos,
        bos_token_id=0,
        eos_token_id=1,
    )
    tokenizer = convert(values)
    inner = tokenizer.encode("hello", add_special_tokens=False).ids
    assert tokenizer.encode("hello").ids == [0] * add_bos + inner + [1] * add_eos


def test_user_defined_tokens_stay_whole_and_visible() -> None:
    values = byte_level_values(train_byte_level(BYTE_LEVEL), "gpt-2")
    values["tokenizer.ggml.tokens"] = [*values["tokenizer.ggml.tokens"], "<think>", "<｜end▁of▁it｜>"]
    values["tokenizer.ggml.token_type"] = [*values["tokenizer.ggml.token_type"], 4, 3]
    tokenizer = convert(values)
    ids = tokenizer.encode("a<think>b<｜end▁of▁it｜>").ids
    assert ids[1] == 600
    assert ids[3] == 601
    assert tokenizer.decode(ids) == "a<think>b"


def sentencepiece(values: Mapping[str, Any], text: str) -> list[int]:
    """SentencePiece's BPE as llama.cpp writes it: join the neighbours whose result scores best, leftmost first."""
    tokens = values["tokenizer.ggml.tokens"]
    normal = {t: i for i, t in enumerate(tokens) if values["tokenizer.ggml.token_type"][i] == 1}
    scores = values["tokenizer.ggml.scores"]
    symbols = list("▁" + text.replace(" ", "▁"))
    while True:
        joins = [(-scores[normal[a + b]], at) for at, (a, b) in enumerate(pairwise(symbols)) if a + b in normal]
        if not joins:
            break
        at = min(joins)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    ids: list[int] = []
    for symbol in symbols:
        ids += [normal[symbol]] if symbol in normal else [tokens.index(f"<0x{byte:02X}>") for byte in symbol.encode()]
    return ids


def test_sentencepiece_encodes_as_the_algorithm_says(sentencepiece_values, write_gguf) -> None:
    values = read_gguf_metadata(write_gguf(sentencepiece_values)).values
    tokenizer = convert(values)
    for text in HOSTILE:
        if text and "<s>" not in text and len(text) < 600:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            assert ids == sentencepiece(values, text), repr(text[:60])
            assert tokenizer.decode(ids) == text.replace("▁", " ")


def test_sentencepiece_adds_bos_unless_told_otherwise(sentencepiece_values) -> None:
    assert convert(sentencepiece_values).encode("hi").ids[0] == 1
    without = sentencepiece_values | {"tokenizer.ggml.add_bos_token": False}
    assert 1 not in convert(without).encode("hi").ids


def test_sentencepiece_without_space_prefix(sentencepiece_values) -> None:
    tokenizer = convert(sentencepiece_values | {"tokenizer.ggml.add_space_prefix": False})
    ids = tokenizer.encode("Hello", add_special_tokens=False).ids
    assert not tokenizer.id_to_token(ids[0]).startswith("▁")
    assert tokenizer.decode(tokenizer.encode(" Hello", add_special_tokens=False).ids) == " Hello"


def test_phi3_marks_swallow_the_space_after_them(sentencepiece_values) -> None:
    values = sentencepiece_values | {"general.architecture": "phi3"}
    values["tokenizer.ggml.tokens"] = [*values["tokenizer.ggml.tokens"], "<|user|>"]
    values["tokenizer.ggml.token_type"] = [*values["tokenizer.ggml.token_type"], 3]
    values["tokenizer.ggml.scores"] = [*values["tokenizer.ggml.scores"], 0.0]
    phi3 = convert(values)
    assert phi3.encode("<|user|>\n x").ids == phi3.encode("<|user|>x").ids
    other = convert(values | {"general.architecture": "llama"})
    assert other.encode("<|user|>\n x").ids != other.encode("<|user|>x").ids
