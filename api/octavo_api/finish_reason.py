"""Reasons why a choice ended: one definition for engine, gateway and both front ends."""

from enum import StrEnum

from octavo_api.v1 import sampling_pb2


class FinishReason(StrEnum):
    """Reason why a choice ended, in the word that the OpenAI API uses where it has one.

    A choice ends by a stop token or stop string, by its length, because its client left, or by an error.
    """

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"

    def to_proto(self) -> sampling_pb2.FinishReason:
        """Return the value of ``octavo.v1.FinishReason``."""
        return _TO_PROTO[self]

    @classmethod
    def from_proto(cls, value: int) -> "FinishReason | None":
        """Return the reason; None for ``FINISH_REASON_UNSPECIFIED`` and for a value of a newer protocol."""
        return _FROM_PROTO.get(value)


_TO_PROTO = {
    FinishReason.STOP: sampling_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: sampling_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: sampling_pb2.FINISH_REASON_ABORT,
    FinishReason.ERROR: sampling_pb2.FINISH_REASON_ERROR,
}
_FROM_PROTO: dict[int, FinishReason] = {value: reason for reason, value in _TO_PROTO.items()}
