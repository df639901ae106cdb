"""The bytes of each token.

``tokenizers`` decodes a list of tokens to text, and its ``DecodeStream`` to deltas. Both work in text, in which half a
character has no place. So deltas stall, lose the end, or fail ("Invalid prefix encountered"). In bytes it is simple: a
text is the concatenation of its tokens' bytes, read as UTF-8.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tokenizers import Tokenizer

from octavo_api.errors import ModelError


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Bytes of all tokens.

    ``pieces[i]`` are those of token ``i``. ``visible[i]`` is the same, or empty for a special token.

    Both have ``size`` entries. Rows of the model's embedding that no token uses are empty. ``strips_space`` is True
    if a text loses one space at its very start.
    """

    pieces: Sequence[bytes]
    visible: Sequence[bytes]
    strips_space: bool

    @property
    def size(self) -> int:
        return len(self.pieces)


def read_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    """Return the vocabulary.

    Raise ``ModelError`` if the tokenizer decodes by anything but bytes, spaces and byte tokens.
    """
    to_bytes, strips_space = _piece_reader(json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder else {})
    ids = tokenizer.get_vocab(with_added_tokens=True)
    pieces = [b""] * max(vocab_size, 1 + max(ids.values(), default=-1))
    for token, index in ids.items():
        pieces[index] = to_bytes(token)
    visible = list(pieces)
    for index, added in tokenizer.get_added_tokens_decoder().items():
        if added.special:
            visible[index] = b""
    return Vocabulary(pieces, visible, strips_space)


def _piece_reader(decoder: Mapping[str, Any]) -> tuple[Callable[[str], bytes], bool]:
    kind = decoder.get("type")
    if kind == "ByteLevel":
        return _byte_level, False
    if kind != "Sequence":
        raise ModelError(f"tokenizer.json: decoder: got {kind!r}, allowed: ByteLevel, Sequence")
    steps: list[Callable[[str], str]] = []
    read = _plain
    strips_space = False
    for step in decoder["decoders"]:
        match step:
            case {"type": "Replace", "pattern": {"String": old}, "content": new}:
                steps.append(partial(_replace, old=old, new=new))
            case {"type": "ByteFallback"}:
                read = _byte_fallback
            case {"type": "ByteLevel"}:
                read = _byte_level
            case {"type": "Fuse"}:
                pass
            case {"type": "Strip", "content": " ", "start": 0 | 1 as start, "stop": 0}:
                strips_space = start == 1
            case _:
                raise ModelError(f"tokenizer.json: decoder: got {step}, allowed: Replace, ByteFallback, Fuse, Strip")

    def piece(token: str) -> bytes:
        for apply in steps:
            token = apply(token)
        return read(token)

    return piece, strips_space


def _replace(token: str, *, old: str, new: str) -> str:
    return token.replace(old, new)


def _plain(token: str) -> bytes:
    return token.encode()


def _byte_fallback(token: str) -> bytes:
    """Read ``<0x0A>`` as one byte, anything else as UTF-8."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes.fromhex(token[3:5])
        except ValueError:
            pass
    return token.encode()


def byte_alphabet() -> dict[str, int]:
    """Return the byte of each character of a byte-level vocabulary.

    GPT-2's table: printable bytes of Latin-1 stand for themselves. The characters from U+0100 on stand for the
    other bytes.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = byte_alphabet()


def _byte_level(token: str) -> bytes:
    """Read a token in the byte alphabet. Read a token with other characters (a mark like ``<｜end｜>``) as UTF-8."""
    try:
        return bytes(map(_ALPHABET.__getitem__, token))
    except KeyError:
        return token.encode()
