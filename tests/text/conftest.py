"""Small tokenizers trained on the spot, GGUF files written on the spot, and the embedded model's own."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from octavo_api.model_source import EMBEDDED, locate
from octavo_text import ModelText

HOSTILE = [
    "",
    " ",
    "Hello, world!",
    "  two spaces before 12 and   three before 345",
    "12 1234567890 3.14159 1,000,000 ٣٤٥ ⅷ ² ½",
    "\n\n\n\t\t \r\n a\r b \x0b \x0c \u00a0 \u2003 \u3000 \u200b end   ",
    "I'm you're we'LL IT'S 'twas don’t",
    "naïve café — “quotes” … Ωμέγα ÅÄÖ ǅ ŉ İıſß ﬁ",
    "e\u0301 vs é, क्षि, กำ, 한글 한글",
    "日本語のテキスト、中文文本。한국어 텍스트",
    "مرحبا بالعالم שלום עולם",
    "👨‍👩‍👧‍👦 🇩🇪 🏳️‍🌈 👍🏽 \U0001f9d1\u200d\U0001f680",
    "def f(x: int) -> str:\n    return f'{x!r}'  # comment\n\tif (a && b) { c[0] += 1; }\n",
    "<|im_start|>user\nhi<|im_end|><|endoftext|> <|im_start |> <s></s> [INST] <repo_name>x",
    "\x00\x01\x1b[31mred\x7f\x80\x9f \ufffd \ufeff \uffff \U0010ffff",
    "a" * 3000,
    " " * 1000 + "x" + "\n" * 500,
    "ab12 " * 500,
    "https://example.com/a?b=c&d=%20#e user@example.org C:\\path\\file",
    "▁ already ▁▁ marked ▁",
]


@pytest.fixture(scope="session")
def hostile() -> list[str]:
    """Texts that tokenizers are known to disagree about."""
    return HOSTILE


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> ModelText:
    return ModelText.load(locate(EMBEDDED), cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def embedded_tokenizer(embedded: ModelText) -> Tokenizer:
    """The library's own object, as an oracle for decoding."""
    return embedded._tokenizer


WriteGguf = Callable[..., Path]


@pytest.fixture
def write_gguf(tmp_path: Path) -> WriteGguf:
    """Writes a GGUF file without tensors; keys are given without ``tokenizer.``, values as Python has them."""
    from gguf import GGUFValueType, GGUFWriter

    def write(values: dict[str, Any], *, architecture: str = "llama", name: str = "model.gguf") -> Path:
        writer = GGUFWriter(tmp_path / name, architecture)
        for key, value in values.items():
            match value:
                case bool():
                    writer.add_bool(key, value)
                case int():
                    writer.add_uint32(key, value)
                case float():
                    writer.add_float32(key, value)
                case str():
                    writer.add_string(key, value)
                case _ if value and all(isinstance(x, float) for x in value):
                    writer.add_key_value(key, value, GGUFValueType.ARRAY, GGUFValueType.FLOAT32)
                case _:
                    writer.add_array(key, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return tmp_path / name

    return write


@pytest.fixture(scope="session")
def train_byte_level() -> Callable[..., Tokenizer]:
    """Trains a byte-level BPE of 600 tokens that cuts text with ``pre_tokenizer``."""

    def train(
        pre_tokenizer: pre_tokenizers.PreTokenizer, *, ignore_merges: bool = False, nfc: bool = False
    ) -> Tokenizer:
        tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
        tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.decoder = decoders.ByteLevel()
        if nfc:
            tokenizer.normalizer = normalizers.NFC()
        trainer = trainers.BpeTrainer(
            vocab_size=600,
            special_tokens=["<|im_start|>", "<|im_end|>", "<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(HOSTILE * 3, trainer)
        return tokenizer

    return train


@pytest.fixture(scope="session")
def byte_level_values() -> Callable[..., dict[str, Any]]:
    """Returns the GGUF keys that describe a byte-level tokenizer."""

    def values(tokenizer: Tokenizer, pre: str, **more: Any) -> dict[str, Any]:
        import json

        model = json.loads(tokenizer.to_str())["model"]
        tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
        special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        return {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
            "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
            **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
        }

    return values


def _pieces(texts: Iterable[str], size: int) -> list[str]:
    """Trains pieces as SentencePiece's BPE does: the whole text with ▁ for spaces, most frequent pair first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, show_progress=False, limit_alphabet=80))
    return [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]


@pytest.fixture(scope="session")
def sentencepiece_values() -> dict[str, Any]:
    """The GGUF keys of a small SentencePiece vocabulary: unknown, control, byte, user-defined and normal tokens."""
    pieces = _pieces(HOSTILE * 3, 500)
    head = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "<think>"]
    # As SentencePiece writes them: merged pieces first, by rank, then characters.
    normal = [p for p in pieces if len(p) > 1] + [p for p in pieces if len(p) == 1]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": head + normal,
        "tokenizer.ggml.scores": [0.0] * len(head) + [-float(rank) for rank in range(len(normal))],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, 4] + [1] * len(normal),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
