"""Messages that wait for one gateway: bounded, whatever the gateway does.

While a message is on its way, the outbox gathers everything that follows into the next one. It joins tokens of one
choice and never drops them, so what it gathers may take several messages. It keeps only the newest load and digest. It
drops block events beyond a bound. The next message then reports the loss, the gateway requests a snapshot, and its
state is correct again from there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from octavo_api.v1 import replica_pb2
from octavo_engine.core.request import RequestOutput
from octavo_engine.service.messages import add_to_output, in_parts, size_bound

MAX_PENDING_HASHES = 65_536
MAX_OUTPUT_BYTES = 16 * 2**20
"""Bytes of outputs from which the next output begins a new message, far below ``MAX_MESSAGE_BYTES``."""


@dataclass(frozen=True, slots=True)
class CacheState:
    """Load and digest after a step, as messages; shared by all outboxes."""

    load: replica_pb2.Load
    digest: replica_pb2.Digest
    num_cached_blocks: int


class Outbox:
    """Messages to send on one stream, in the order that is correct there: snapshot, then step."""

    def __init__(
        self,
        epoch: int,
        state: CacheState,
        *,
        max_pending_hashes: int = MAX_PENDING_HASHES,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
    ) -> None:
        self._epoch = epoch
        self._max_output_bytes = max_output_bytes
        self._max_pending_hashes = max_pending_hashes
        self._state = state
        self._seq = 0
        self._messages = [replica_pb2.ReplicaMessage()]
        self._outputs: dict[tuple[int, int], replica_pb2.Output] = {}
        """Outputs of the last message, by request and choice."""
        self._output_bytes = 0
        self._events: list[replica_pb2.CacheEvent] = []
        self._pending_hashes = 0
        self._events_lost = False
        self._gap = False
        self._snapshot: replica_pb2.Snapshot | None = None

    @property
    def has_outputs(self) -> bool:
        return bool(self._outputs)

    def add_output(self, request_id: int, output: RequestOutput) -> None:
        """Append an output. Gateways receive the outputs of a choice in order."""
        key = (request_id, output.choice)
        for part in in_parts(output):
            if self._output_bytes > self._max_output_bytes:
                self._messages.append(replica_pb2.ReplicaMessage())
                self._outputs, self._output_bytes = {}, 0
            message = self._outputs.get(key)
            if message is None:
                message = self._messages[-1].step.outputs.add(id=request_id, choice=output.choice)
                self._outputs[key] = message
            add_to_output(message, part)
            self._output_bytes += size_bound(part)

    def add_events(self, events: Sequence[replica_pb2.CacheEvent], num_hashes: int) -> None:
        """Keep ``events``, which name ``num_hashes`` blocks, or drop them and all that wait.

        After a gap, events have no meaning until a snapshot, so they are dropped until then.
        """
        if not events:
            return
        self._pending_hashes += num_hashes
        if self._gap or self._pending_hashes > self._max_pending_hashes:
            self._gap = self._events_lost = True
            self._drop_events()
        else:
            self._events.extend(events)

    def set_state(self, state: CacheState) -> None:
        """Replace load and digest, which belong to the events added so far."""
        self._state = state

    def set_snapshot(self, hashes: Sequence[int]) -> None:
        """Send all held blocks of the present state; drop waiting events, which are part of it."""
        self._drop_events()
        self._gap = self._events_lost = False
        self._snapshot = replica_pb2.Snapshot(epoch=self._epoch, hashes=hashes, digest=self._state.digest)

    def take(self) -> list[replica_pb2.ReplicaMessage]:
        """Return the messages to send now, and start with an empty message.

        The first step has all events, so that its digest and those of the steps after it are correct.
        """
        messages, self._messages = self._messages, [replica_pb2.ReplicaMessage()]
        messages[0].step.events.extend(self._events)
        messages[0].step.events_lost = self._events_lost
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            snapshot.seq = self._seq
        for message in messages:
            self._seq += 1
            step = message.step
            step.epoch = self._epoch
            step.seq = self._seq
            step.load.CopyFrom(self._state.load)
            step.digest.CopyFrom(self._state.digest)
            step.n_blocks = self._state.num_cached_blocks
        self._outputs, self._output_bytes = {}, 0
        self._drop_events()
        self._events_lost = False
        return messages if snapshot is None else [replica_pb2.ReplicaMessage(snapshot=snapshot), *messages]

    def _drop_events(self) -> None:
        self._events = []
        self._pending_hashes = 0
