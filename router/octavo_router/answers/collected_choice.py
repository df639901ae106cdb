"""All deltas of one choice, for an answer in one piece."""

from dataclasses import dataclass, field

from octavo_api.finish_reason import FinishReason
from octavo_api.v1.sampling_pb2 import PositionLogprobs
from octavo_router.answers.choice_reader import Delta


@dataclass(slots=True)
class CollectedChoice:
    """Sum of the deltas of one choice. It has the fields of a delta that front ends send."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    _texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def add(self, delta: Delta) -> None:
        """Add a delta. A restarted choice loses all earlier deltas."""
        if delta.restarted:
            self._texts, self.token_ids, self.logprobs = [], [], []
        self._texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
