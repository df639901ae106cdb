"""Log probabilities in OpenAI's two formats."""

from collections.abc import Sequence
from typing import Any

from octavo_api.v1.sampling_pb2 import PositionLogprobs, TokenLogprob
from octavo_text import ModelText

LOWEST = -9999.0
"""Log probability in place of minus infinity, which JSON does not have. vLLM uses the same value."""


def chat_logprobs(text: ModelText, positions: Sequence[PositionLogprobs]) -> dict[str, Any]:
    """Return the log probabilities of a chat: ``content`` has one entry for each token, with bytes and alternatives."""
    content = [
        {**_entry(text, item.chosen), "top_logprobs": [_entry(text, other) for other in item.top]} for item in positions
    ]
    return {"content": content, "refusal": None}


def _entry(text: ModelText, item: TokenLogprob) -> dict[str, Any]:
    token = text.token_text(item.token_id)
    return {"token": token, "logprob": max(item.logprob, LOWEST), "bytes": list(text.token_bytes(item.token_id))}


class CompletionLogprobs:
    """Log probabilities of a completion: four parallel lists, in one call of ``add`` for each piece.

    ``text_offset`` counts characters from the start of the choice's text, including an echoed prompt.
    """

    def __init__(self, text: ModelText) -> None:
        self._text = text
        self._offset = 0

    def add(self, positions: Sequence[PositionLogprobs]) -> dict[str, Any]:
        result = _empty()
        for item in positions:
            token = self._text.token_text(item.chosen.token_id)
            top = {self._text.token_text(other.token_id): max(other.logprob, LOWEST) for other in item.top}
            logprob = max(item.chosen.logprob, LOWEST)
            self._append(result, token, logprob, {**top, token: logprob})
        return result

    def add_prompt(self, ids: Sequence[int], positions: Sequence[PositionLogprobs]) -> dict[str, Any]:
        """Return the prompt's lists.

        ``positions`` cover all prompt tokens except the first, which has no log probability.
        """
        first = _empty()
        self._append(first, self._text.token_text(ids[0]), None, None)
        return join_logprobs(first, self.add(positions))

    def _append(self, result: dict[str, Any], token: str, logprob: float | None, top: dict[str, float] | None) -> None:
        result["tokens"].append(token)
        result["token_logprobs"].append(logprob)
        result["top_logprobs"].append(top)
        result["text_offset"].append(self._offset)
        self._offset += len(token)


def _empty() -> dict[str, Any]:
    return {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}


def join_logprobs(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    return {name: one[name] + two[name] for name in one}
