"""The library's whole decode is the oracle: what comes in deltas must add up to it."""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from octavo_api.errors import InvalidRequest, ModelError
from octavo_testing.text.corpus import HOSTILE
from octavo_text import Detokenizer, ModelText
from octavo_text.gguf_metadata import read_gguf_metadata
from octavo_text.gguf_tokenizer import tokenizer_document
from octavo_text.vocabulary import Vocabulary, read_vocabulary

BROKEN = "\ufffd"
VOCAB = 49152
# Half of all ids drawn are single bytes and special tokens, where all the trouble is.
BYTES_AND_SPECIAL = st.integers(0, 280)
ids_lists = st.lists(BYTES_AND_SPECIAL | st.integers(0, VOCAB - 1), max_size=40)
fixture_is_constant = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def deltas(detokenizer: Detokenizer, ids: Sequence[int], cuts: Sequence[int] = ()) -> list[str]:
    """Pushes one id at a time, or in pieces that end at ``cuts``."""
    ends = sorted({min(cut, len(ids)) for cut in cuts} | {len(ids)}) if cuts else range(1, len(ids) + 1)
    shown, start = [], 0
    for end in ends:
        shown.append(detokenizer.push(ids[start:end]))
        start = end
    return [*shown, detokenizer.flush()]


@fixture_is_constant
@given(ids=ids_lists, skip=st.booleans())
def test_decode_is_the_librarys(embedded: ModelText, embedded_tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    assert embedded.decode(ids, skip_special_tokens=skip) == embedded_tokenizer.decode(ids, skip_special_tokens=skip)


@fixture_is_constant
@given(prompt=ids_lists, ids=ids_lists, cuts=st.lists(st.integers(0, 40), max_size=5), skip=st.booleans())
def test_deltas_add_up_to_the_text_after_the_prompt(
    embedded: ModelText,
    embedded_tokenizer: Tokenizer,
    prompt: list[int],
    ids: list[int],
    cuts: list[int],
    skip: bool,
) -> None:
    before = embedded_tokenizer.decode(prompt, skip_special_tokens=skip)
    after = embedded_tokenizer.decode(prompt + ids, skip_special_tokens=skip)
    shown = "".join(deltas(embedded.detokenizer(prompt, skip_special_tokens=skip), ids, cuts))
    # Where the prompt ends within a character, that character is the output's if the output completes it.
    assert after in (before + shown, before.removesuffix(BROKEN) + shown)


@fixture_is_constant
@given(text=st.text(max_size=60), data=st.data())
def test_no_delta_shows_half_a_character(embedded: ModelText, text: str, data: st.DataObject) -> None:
    ids = embedded._encode(text, False, "prompt")
    cut = data.draw(st.integers(0, len(ids)))
    shown = deltas(embedded.detokenizer(ids[:cut]), ids[cut:])
    kept = embedded.decode(ids, skip_special_tokens=True)
    assert kept.endswith("".join(shown))
    assert all(kept.count(BROKEN) >= delta.count(BROKEN) for delta in shown)
    if BROKEN not in kept:
        assert BROKEN not in "".join(shown)


@pytest.mark.parametrize("text", ["👨‍👩‍👧‍👦", "日本語", "क्षि", "é", "\U0010ffff", "naïve 🇩🇪"])
def test_characters_of_many_tokens_come_whole(embedded: ModelText, text: str) -> None:
    ids = embedded._encode(text, False, "prompt")
    shown = deltas(embedded.detokenizer([2]), ids)
    assert "".join(shown) == text
    assert shown[-1] == ""
    assert all(BROKEN not in delta for delta in shown)


def test_unfinished_character_comes_with_the_flush(embedded: ModelText) -> None:
    ids = embedded._encode("a日", False, "prompt")[:-1]
    assert deltas(embedded.detokenizer([2]), ids)[-1] == BROKEN


def test_prompt_that_ends_within_a_character_leaks_nothing(embedded: ModelText) -> None:
    ids = embedded._encode("secret 日", False, "prompt")
    cut = len(ids) - 1
    assert embedded.decode(ids[:cut]).endswith(BROKEN)
    assert "".join(deltas(embedded.detokenizer(ids[:cut]), ids[cut:])) == "日"
    other = embedded._encode("ok", False, "prompt")
    assert "".join(deltas(embedded.detokenizer(ids[:cut]), other)) == "ok"
    assert "".join(deltas(embedded.detokenizer(ids[:cut]), [])) == ""


def test_special_tokens_are_skipped_or_shown(embedded: ModelText) -> None:
    ids = embedded._encode("<|im_start|>hi<|im_end|>", False, "prompt")
    assert embedded.decode(ids) == "hi"
    assert embedded.decode(ids, skip_special_tokens=False) == "<|im_start|>hi<|im_end|>"


def test_choices_do_not_share_state(embedded: ModelText) -> None:
    ids = embedded._encode("日", False, "prompt")
    one, two = embedded.detokenizer([2]), embedded.detokenizer([2])
    assert one.push(ids[:1]) == ""
    assert two.push(embedded._encode("x", False, "prompt")) == "x"
    assert one.push(ids[1:]) == "日"


def test_rows_of_the_embedding_that_no_token_uses_are_empty(embedded_tokenizer: Tokenizer) -> None:
    vocabulary = read_vocabulary(embedded_tokenizer, VOCAB + 64)
    assert vocabulary.size == VOCAB + 64
    assert Detokenizer(vocabulary, []).push([VOCAB, VOCAB + 63]) == ""


def test_decode_refuses_ids_outside_of_the_vocabulary(embedded: ModelText) -> None:
    for wrong in (-1, VOCAB):
        with pytest.raises(InvalidRequest, match=rf"tokens: got {wrong}, allowed: ids from 0 to 49151"):
            embedded.decode([5, wrong])


def test_one_tokens_text_and_bytes(embedded: ModelText) -> None:
    first, *rest = embedded._encode("日", False, "prompt")
    assert embedded.token_bytes(first) + b"".join(map(embedded.token_bytes, rest)) == "日".encode()
    assert embedded.token_text(rest[-1]) == BROKEN
    assert embedded.token_text(2) == "<|im_end|>"
    assert embedded.token_text(embedded._encode(" the", False, "prompt")[0]) == " the"


@pytest.fixture
def byte_fallback(sentencepiece_values, write_gguf) -> tuple[Tokenizer, Vocabulary]:
    import json

    document = tokenizer_document(read_gguf_metadata(write_gguf(sentencepiece_values)).values)
    tokenizer = Tokenizer.from_str(json.dumps(document))
    return tokenizer, read_vocabulary(tokenizer, tokenizer.get_vocab_size())


def test_byte_fallback_characters_come_whole(byte_fallback) -> None:
    tokenizer, vocabulary = byte_fallback
    for text in HOSTILE:
        ids = tokenizer.encode(text).ids
        shown = deltas(Detokenizer(vocabulary, []), ids)
        assert "".join(shown) == tokenizer.decode(ids)
        # After a prompt with text in it, a token's space is a space.
        prompt = tokenizer.encode("Hello").ids
        assert "".join(deltas(Detokenizer(vocabulary, prompt), ids)) == tokenizer.decode(prompt + ids)[5:]


def test_byte_fallback_keeps_what_is_valid_around_a_broken_byte(byte_fallback) -> None:
    """Here the library's own decode gives U+FFFD for every byte of the run, which no stream can know in advance."""
    _, vocabulary = byte_fallback
    run = [3 + byte for byte in "é".encode() + b"\xff" + "日".encode()]
    assert "".join(deltas(Detokenizer(vocabulary, [5]), run)) == f"é{BROKEN}日"


def test_space_is_stripped_at_the_start_of_a_text_only(byte_fallback) -> None:
    tokenizer, vocabulary = byte_fallback
    space = tokenizer.token_to_id("▁")
    assert Detokenizer(vocabulary, [1]).push([space, space]) == " "
    assert Detokenizer(vocabulary, [1, 100]).push([space, space]) == "  "


@pytest.mark.parametrize(
    "decoder",
    [{"type": "WordPiece", "prefix": "##", "cleanup": True}, {"type": "Sequence", "decoders": [{"type": "CTC"}]}],
)
def test_unknown_decoders_are_refused(decoder) -> None:
    from octavo_text.vocabulary import _piece_reader

    with pytest.raises(ModelError, match=r"decoder: got .* allowed"):
        _piece_reader(decoder)
