"""The embedded model and a SentencePiece file against ``transformers``' own reader of GGUF."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from octavo_api.startup.model_source import EMBEDDED, Format, ModelFiles, locate
from octavo_testing.text.corpus import HOSTILE
from octavo_text import ModelText

pytestmark = pytest.mark.model

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": ""}, {"role": "user", "content": " 日本 <|im_end|> 12  34 "}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b\n"},
        {"role": "user", "content": "c" * 2000},
    ],
]


@pytest.fixture(scope="module")
def theirs() -> Any:
    from transformers import AutoTokenizer

    path = locate(EMBEDDED).path
    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@pytest.fixture(scope="module")
def as_published(theirs: Any) -> Any:
    """Reads ``tokenizer.ggml.pre = smollm`` as llama.cpp and the model's published tokenizer do: digits alone.

    ``transformers`` has no entry for it and falls back to GPT-2's rule, which cuts spaces before a digit differently.
    """
    digits = pre_tokenizers.Digits(individual_digits=True)
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return theirs


async def test_encodes_as_transformers_where_no_digit_follows_spaces(embedded: ModelText, theirs: Any) -> None:
    import re

    compared = 0
    for text in HOSTILE:
        if not re.search(r"\s\s\d", text) and not re.search(r"[ⅷ²½]", text):
            assert await embedded.encode(text) == theirs.encode(text), repr(text[:60])
            compared += 1
    assert compared > len(HOSTILE) * 0.8


async def test_encodes_as_the_published_tokenizer(embedded: ModelText, as_published: Any) -> None:
    for text in HOSTILE:
        ids = as_published.encode(text)
        assert await embedded.encode(text) == ids, repr(text[:60])
        for skip in (True, False):
            assert embedded.decode(ids, skip_special_tokens=skip) == as_published.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("messages", CHATS)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
async def test_chats_encode_as_transformers(embedded, as_published, messages, add_generation_prompt) -> None:
    expected = as_published.apply_chat_template(
        messages, add_generation_prompt=add_generation_prompt, return_dict=False
    )
    assert await embedded.encode_chat(messages, add_generation_prompt=add_generation_prompt) == expected


def test_marks_of_the_embedded_model(embedded: ModelText, theirs: Any) -> None:
    assert embedded.bos_token_id == theirs.bos_token_id
    assert embedded.eos_token_ids == {theirs.eos_token_id}
    assert embedded.vocab_size == len(theirs)
    assert embedded.max_position_embeddings == 8192


async def test_sentencepiece_encodes_as_transformers(sentencepiece_values, write_gguf, tmp_path: Path) -> None:
    """Its reader of Phi-3 files puts the space before a text as llama.cpp does for all.

    It does not know that Phi-3's marks swallow the space after them, so no space follows a mark here.
    """
    from transformers import AutoTokenizer

    path = write_gguf(sentencepiece_values | {"phi3.context_length": 64}, architecture="phi3")
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    ours = ModelText.load(ModelFiles(path, Format.GGUF), cache=tmp_path / "cache")
    for text in [*HOSTILE, "a<s>b</s>c<think> d"]:
        if text and "</s> " not in text:
            ids = theirs.encode(text)
            assert await ours.encode(text) == ids, repr(text[:60])
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
