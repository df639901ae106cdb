"""One submission of a request to one replica: the outputs that have arrived, and the end."""

import asyncio
from collections.abc import Callable

from octavo_api.errors import ReplicaLost, RequestError
from octavo_api.v1 import replica_pb2, sampling_pb2

_ERROR = sampling_pb2.FINISH_REASON_ERROR


class Attempt:
    """Outputs of one submission, from their arrival until a reader takes them.

    Outputs that wait for a slow reader are merged into one message for each choice. So the answer's own length
    bounds them.

    ``on_start`` is called at the first output. ``on_end`` is called once, when the last output *arrives*: every
    choice has ended, the replica sent an error, or the replica is lost. Then ``error`` holds the reason of a failure.
    """

    def __init__(
        self, num_choices: int, *, on_start: Callable[[replica_pb2.Output], None], on_end: Callable[[], None]
    ) -> None:
        self.id = 0
        """Number of the submission on the replica's stream, set by ``Replica.send``."""
        self.open = set(range(num_choices))
        self.pending: dict[int, replica_pb2.Output] = {}
        self.started = False
        self.was_read = False
        self.num_output_tokens = 0
        self.error: RequestError | None = None
        self._on_start = on_start
        self._on_end = on_end
        self._reader: asyncio.Future[None] | None = None

    def deliver(self, output: replica_pb2.Output) -> None:
        """Add an output of the replica. Outputs of a choice that is not open are dropped."""
        if output.finish_reason == _ERROR:
            self._end(RequestError.from_proto(output.error))
            return
        choice = output.choice
        if choice not in self.open:
            return
        if not self.started:
            self.started = True
            self._on_start(output)
        self.num_output_tokens += len(output.token_ids)
        waiting = self.pending.get(choice)
        if waiting is None:
            self.pending[choice] = output
        else:
            waiting.MergeFrom(output)
        if output.finish_reason:
            self.open.discard(choice)
            if not self.open:
                self._end(None)
        self.wake()

    def lose(self, error: ReplicaLost) -> None:
        """Record that the replica's stream is gone, together with all outputs that had not arrived."""
        self._end(error)

    def take(self) -> list[replica_pb2.Output]:
        """Return the pending outputs, one for each choice that has any."""
        outputs = list(self.pending.values())
        self.pending = {}
        self.was_read = True
        return outputs

    def drop_choice(self, choice: int) -> None:
        """Drop the pending and all later outputs of a choice."""
        self.open.discard(choice)
        self.pending.pop(choice, None)

    def void(self) -> None:
        """Drop the pending outputs, because another attempt answers the request."""
        self.pending.clear()
        self.num_output_tokens = 0

    def arrival(self) -> asyncio.Future[None]:
        """Return a future that the next call of ``wake`` completes. Only one reader may wait."""
        self._reader = asyncio.get_running_loop().create_future()
        return self._reader

    def wake(self) -> None:
        """Wake the waiting reader, if there is one."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _end(self, error: RequestError | None) -> None:
        self.error = error
        self._on_end()
        self.wake()
