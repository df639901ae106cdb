"""Small tokenizers trained on the corpus, and the GGUF keys that describe them."""

import json
from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from octavo_testing.text.corpus import HOSTILE


def train_byte_level(
    pre_tokenizer: pre_tokenizers.PreTokenizer, *, ignore_merges: bool = False, nfc: bool = False
) -> Tokenizer:
    """Train a byte-level BPE of 600 tokens that cuts text with ``pre_tokenizer``."""
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


def byte_level_values(tokenizer: Tokenizer, pre: str, **more: Any) -> dict[str, Any]:
    """Return the GGUF keys that describe a byte-level tokenizer."""
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


def sentencepiece_values() -> dict[str, Any]:
    """Return the GGUF keys of a small SentencePiece vocabulary with tokens of every type."""
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


def _pieces(texts: Iterable[str], size: int) -> list[str]:
    """Train pieces as SentencePiece's BPE does: the whole text with ▁ for spaces, most frequent pair first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, show_progress=False, limit_alphabet=80))
    return [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
