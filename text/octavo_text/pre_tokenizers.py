"""Cuts of text before merging, for each family of byte-level BPE vocabularies, by GGUF's ``tokenizer.ggml.pre``.

With a wrong cut a vocabulary still encodes, but differently from the training of its model. So an unknown name is an
error and not a guess. The expressions and flags come from each family's published ``tokenizer.json``. The names are the
ones of llama.cpp's converter (``src/llama-vocab.cpp``).
"""

from dataclasses import dataclass
from typing import Any

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_TEKKEN = rf"{_UPPER}*{_LOWER}+|{_UPPER}+{_LOWER}*|\p{{N}}|{_PUNCTUATION}"
_GPT4O = rf"{_UPPER}*{_LOWER}+{_CONTRACTION}|{_UPPER}+{_LOWER}*{_CONTRACTION}|\p{{N}}{{1,3}}|{_PUNCTUATION}"

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_DIGITS = {"type": "Digits", "individual_digits": True}


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Rules of one family. ``pattern`` cuts the text. None is GPT-2's pattern, which ``tokenizers`` has built in.

    ``digits``: every digit is cut out first. ``nfc``: text is normalized first. ``ignore_merges``: a word that is a
    token is taken whole, whatever the merges are. ``add_bos``: the default if the file has no value.
    """

    pattern: str | None = None
    digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def document(self) -> dict[str, Any]:
        """Return the ``pre_tokenizer`` of a ``tokenizer.json``."""
        if self.pattern is None:
            return _sequence(_DIGITS, _BYTE_LEVEL) if self.digits else _BYTE_LEVEL
        split = {"type": "Split", "pattern": {"Regex": self.pattern}, "behavior": "Isolated", "invert": False}
        return _sequence(split, _BYTE_LEVEL | {"use_regex": False})


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


_FAMILIES: dict[PreTokenizer, str] = {
    PreTokenizer(): "default gpt-2 phi-2 mpt olmo jais gigachat",
    PreTokenizer(digits=True): "smollm starcoder refact command-r codeshell exaone minerva-7b",
    PreTokenizer(_LLAMA3, ignore_merges=True, add_bos=True): "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2",
    PreTokenizer(_LLAMA3): "dbrx smaug-bpe",
    PreTokenizer(_QWEN2, nfc=True): "qwen2 deepseek-r1-qwen megrez kormo f2llmv2",
    PreTokenizer(_QWEN2): "stablelm2 hunyuan",
    PreTokenizer(_QWEN35, nfc=True): "qwen35",
    PreTokenizer(_TEKKEN, ignore_merges=True, add_bos=True): "tekken",
    PreTokenizer(_GPT4O): "gpt-4o llama4 kanana2",
}

PRE_TOKENIZERS = {name: family for family, names in _FAMILIES.items() for name in names.split()}
