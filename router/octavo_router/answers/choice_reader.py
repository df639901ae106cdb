"""Conversion of one choice's tokens to its reader's view: text up to a stop string, token ids, log probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass

from octavo_api.finish_reason import FinishReason
from octavo_api.v1 import replica_pb2, sampling_pb2
from octavo_text import Detokenizer, StopStrings


@dataclass(slots=True)
class Delta:
    """New output of one choice. ``text`` is never empty unless the choice ends with it.

    ``token_ids`` and ``logprobs`` cover all tokens since the last delta, whether or not they show as text.
    ``stop_reason`` is the stop string or the id of ``stop_token_ids`` that ended the choice. ``restarted`` is True if
    the choice has restarted; its earlier deltas are void.
    """

    choice: int
    text: str
    token_ids: list[int]
    logprobs: list[sampling_pb2.PositionLogprobs]
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    restarted: bool = False


class ChoiceReader:
    """Converter of the engine's outputs for one choice into deltas."""

    def __init__(
        self,
        index: int,
        detokenizer: Detokenizer,
        stops: StopStrings | None,
        *,
        show_stop: bool,
        logprobs: bool,
        min_tokens: int = 0,
    ) -> None:
        self.index = index
        self.finished = False
        self.num_tokens = 0
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self._show_stop = show_stop
        self._plain = stops is None and not logprobs
        self._token_ids: list[int] = []
        self._logprobs: list[sampling_pb2.PositionLogprobs] = []

    def push(self, output: replica_pb2.Output) -> Delta | None:
        """Return the new delta, or None if there is no text to show yet.

        A choice that a stop string ended is ``finished``, although the engine has not reported its end.
        """
        ids = list(output.token_ids)
        if not output.finish_reason and self._plain:
            text = self._detokenizer.push(ids)
            self.num_tokens += len(ids)
            if text and not self._token_ids:
                return Delta(self.index, text, ids, [])
            self._token_ids += ids
            return self._delta(text) if text else None
        finish = FinishReason.from_proto(output.finish_reason)
        # The token that ended the choice (end of text, or one of stop_token_ids) is no part of the text.
        shown = ids[:-1] if finish is FinishReason.STOP and not self._show_stop else ids
        if self._stops is None:
            text = self._detokenizer.push(shown)
            if finish:
                text += self._detokenizer.flush()
            return self._collect(text, ids, output.logprobs, finish, _stop_token(output) if finish else None)
        return self._read_until_stop(self._stops, ids, len(shown), output, finish)

    def _read_until_stop(
        self,
        stops: StopStrings,
        ids: list[int],
        num_shown: int,
        output: replica_pb2.Output,
        finish: FinishReason | None,
    ) -> Delta | None:
        """Read token by token, so that no token after the stop string counts.

        A stop string that completes within the first ``min_tokens`` tokens does not count, as in vLLM.
        """
        parts = []
        first_to_end = self._min_tokens - self.num_tokens
        for position in range(num_shown):
            text = self._detokenizer.push(ids[position : position + 1])
            parts.append(stops.push(text, may_end=position >= first_to_end))
            if stops.matched is not None:
                used = position + 1
                return self._collect(
                    "".join(parts), ids[:used], output.logprobs[:used], FinishReason.STOP, stops.matched
                )
        reason: str | int | None = None
        if finish:
            parts.append(stops.push(self._detokenizer.flush(), may_end=len(ids) > first_to_end))
            if stops.matched is None:
                parts.append(stops.flush())
                reason = _stop_token(output)
            else:
                finish, reason = FinishReason.STOP, stops.matched
        return self._collect("".join(parts), ids, output.logprobs, finish, reason)

    def _collect(
        self,
        text: str,
        ids: list[int],
        logprobs: Sequence[sampling_pb2.PositionLogprobs],
        finish: FinishReason | None,
        reason: str | int | None,
    ) -> Delta | None:
        self.num_tokens += len(ids)
        self._token_ids += ids
        self._logprobs += logprobs
        if not text and finish is None:
            return None
        self.finished = finish is not None
        return self._delta(text, finish, reason)

    def _delta(self, text: str, finish: FinishReason | None = None, reason: str | int | None = None) -> Delta:
        delta = Delta(self.index, text, self._token_ids, self._logprobs, finish, reason)
        self._token_ids = []
        self._logprobs = []
        return delta


def _stop_token(output: replica_pb2.Output) -> int | None:
    return output.stop_token_id if output.HasField("stop_token_id") else None
