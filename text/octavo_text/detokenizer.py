"""Conversion of tokens to text, as they come."""

import codecs
from collections.abc import Sequence

from octavo_text.vocabulary import Vocabulary

_UTF8 = codecs.getincrementaldecoder("utf-8")
_LONGEST_CHARACTER = 4
_REPLACEMENT = "\ufffd"


class Detokenizer:
    """Converter of one choice's tokens into deltas that never show half a character.

    All deltas and the flush together are the text of the output after its prompt. A character that the prompt began
    and the output ends belongs to the output. A character that stays broken in the prompt does not. Bytes that are
    not UTF-8 become U+FFFD. Bytes of an unfinished character at the very end become U+FFFD on ``flush``.
    """

    __slots__ = ("_decoder", "_drop", "_pieces")

    def __init__(self, vocabulary: Vocabulary, prompt_ids: Sequence[int], *, skip_special_tokens: bool = True) -> None:
        self._pieces = vocabulary.visible if skip_special_tokens else vocabulary.pieces
        self._decoder = _UTF8("replace")
        self._decoder.decode(self._tail(prompt_ids))
        # The first text loses this start: the prompt's broken character, or the first space of a SentencePiece text.
        self._drop = ""
        if self._decoder.getstate()[0]:
            self._drop = _REPLACEMENT
        elif vocabulary.strips_space and not any(self._pieces[token] for token in prompt_ids):
            self._drop = " "

    def push(self, ids: Sequence[int]) -> str:
        """Return the text that is certain now. It is empty while a character is unfinished."""
        pieces = self._pieces
        return self._shown(self._decoder.decode(b"".join([pieces[token] for token in ids])))

    def flush(self) -> str:
        """Return the rest of the text at the end of the output."""
        return self._shown(self._decoder.decode(b"", final=True))

    def _shown(self, text: str) -> str:
        if self._drop and text:
            text = text.removeprefix(self._drop)
            self._drop = ""
        return text

    def _tail(self, prompt_ids: Sequence[int]) -> bytes:
        """Return the prompt's last bytes, enough to hold any unfinished character."""
        tail = b""
        for token in reversed(prompt_ids):
            tail = self._pieces[token] + tail
            if len(tail) >= _LONGEST_CHARACTER:
                break
        return tail
