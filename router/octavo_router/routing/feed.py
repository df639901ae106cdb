"""The router's knowledge of one replica's cache, which the replica's own events keep true.

::

    CONNECTING ── hello ──> SNAPSHOT ── snapshot grafted ──> LIVE
                               ^                              │ gap, events lost, orphan, wrong digest, new epoch, ...
                               └───── back-off is over ── GAP <┘

Every error has a ``ResyncReason``, and a snapshot repairs it. Until then the keys known before stay in use, at
``STALE_CONFIDENCE``, for ``STALE_S`` seconds at most. A silent replica is *untrusted*: its keys are hidden and its load
is unknown, which is not zero.

The module is pure. The caller passes the time as ``now`` (seconds of any monotonic clock) and polls ``snapshot_due``
for requests of snapshots.
"""

from collections import Counter, deque
from collections.abc import Callable
from enum import StrEnum

from octavo_api.blocks import Digest
from octavo_api.v1 import replica_pb2
from octavo_router.routing.index import PrefixIndex

UNTRUSTED_S = 1.0
"""Maximum seconds without a Step before keys and load count as unknown."""

LOST_S = 3.0
"""Maximum seconds without a Step before the replica takes no requests and its link is reset."""

STALE_S = 5.0
STALE_CONFIDENCE = 0.5

SNAPSHOT_TIMEOUT_S = 5.0
CALM_S = 10.0
"""Seconds in the state LIVE after which a replica's next back-off is the shortest again."""

MIN_BACKOFF_S = 0.05
MAX_BACKOFF_S = 5.0
MAX_BUFFERED_STEPS = 1024


class FeedState(StrEnum):
    CONNECTING = "connecting"
    SNAPSHOT = "snapshot"
    LIVE = "live"
    GAP = "gap"


class ResyncReason(StrEnum):
    """The reason why a snapshot is needed."""

    CONNECTED = "connected"
    EPOCH = "epoch"
    """The engine has started again."""
    SEQUENCE_GAP = "sequence_gap"
    EVENTS_LOST = "events_lost"
    """The replica reports that it dropped events."""
    ORPHAN = "orphan"
    """A block was stored after one that the replica does not hold."""
    UNKNOWN_BLOCK = "unknown_block"
    """A block was removed that the replica does not hold."""
    DIGEST = "digest"
    COUNT = "count"
    CAPACITY = "capacity"
    """The replica reports more blocks than it has."""
    PATH_GAP = "path_gap"
    """An audit of the index found a hole."""
    SNAPSHOT_TIMEOUT = "snapshot_timeout"
    BACKLOG = "backlog"
    """Too many Steps came before the snapshot."""
    MALFORMED = "malformed"


class Feed:
    """One replica's part of the index. ``jitter`` returns a number from 0 to 1."""

    def __init__(
        self, index: PrefixIndex, *, jitter: Callable[[], float], on_resync: Callable[[ResyncReason], None]
    ) -> None:
        self._index = index
        self._jitter = jitter
        self._on_resync = on_resync
        self.slot = index.add_slot()
        self.state = FeedState.CONNECTING
        self.epoch = 0
        self.resyncs: Counter[ResyncReason] = Counter()
        self._capacity = 0
        self._received: int | None = None
        self._applied = 0
        self._buffer: deque[replica_pb2.Step] = deque()
        self._last_step = 0.0
        self._since = 0.0
        self._stale_since = 0.0
        self._due = 0.0
        self._attempts = 0
        self._live = False
        self.has_been_live = False

    def connected(self, hello: replica_pb2.Hello, now: float) -> None:
        """Start a new stream. If the epoch is the same as before, keep the old keys until the snapshot."""
        if hello.epoch != self.epoch:
            self._replace_slot()
            self.epoch = hello.epoch
        self._capacity = hello.capacity_blocks
        self._received = None
        self._last_step = now
        self._resync(ResyncReason.CONNECTED, now)
        self.tick(now)

    def disconnected(self, now: float) -> None:
        self._enter(FeedState.CONNECTING, now)
        self._buffer.clear()
        self.tick(now)

    def close(self) -> None:
        """Release the slot."""
        self._index.drop_slot(self.slot)

    def mark_alive(self, now: float) -> None:
        """Record that the replica is alive."""
        self._last_step = now

    def step(self, step: replica_pb2.Step, now: float) -> None:
        """Apply a Step in the order of its stream."""
        self.mark_alive(now)
        if step.epoch != self.epoch:
            self._replace_slot()
            self.epoch = step.epoch
            self._resync(ResyncReason.EPOCH, now)
        elif self.state is FeedState.SNAPSHOT:
            if len(self._buffer) >= MAX_BUFFERED_STEPS:
                self._resync(ResyncReason.BACKLOG, now)
            else:
                self._buffer.append(step)
        self._advance(step, now)
        self.tick(now)

    def snapshot(self, snapshot: replica_pb2.Snapshot, now: float) -> None:
        """Graft a snapshot. Apply the Steps since its request on top, unless the snapshot contains them."""
        if self.state is not FeedState.SNAPSHOT:
            return
        if snapshot.epoch != self.epoch:
            self._resync(ResyncReason.EPOCH, now)
            return
        if self._capacity and len(snapshot.hashes) > self._capacity:
            self._resync(ResyncReason.CAPACITY, now)
            return
        self._index.replace(self.slot, snapshot.hashes)
        self._applied = snapshot.seq
        steps, self._buffer = self._buffer, deque()
        self._enter(FeedState.LIVE, now)
        if snapshot.HasField("digest") and self._index.digest(self.slot) != _digest(snapshot.digest):
            self._resync(ResyncReason.DIGEST, now)
        if steps:
            self._received = steps[0].seq - 1
        for step in steps:
            self._advance(step, now)
        self.tick(now)

    def suspect(self, reason: ResyncReason, now: float) -> None:
        """Request a resynchronisation for a reason found outside of the feed."""
        if self.state is FeedState.LIVE:
            self._resync(reason, now)

    def snapshot_due(self, now: float) -> bool:
        """Return True once for each snapshot that the caller must request now."""
        if self.state is FeedState.SNAPSHOT and now - self._since > SNAPSHOT_TIMEOUT_S:
            self._resync(ResyncReason.SNAPSHOT_TIMEOUT, now)
        if self.state is not FeedState.GAP or now < self._due:
            return False
        self._buffer.clear()
        self._enter(FeedState.SNAPSHOT, now)
        return True

    def tick(self, now: float) -> None:
        """Show or hide the slot, depending on the time."""
        if self.state is FeedState.CONNECTING or not self.is_trusted(now):
            live = False
        else:
            live = self.state is FeedState.LIVE or now - self._stale_since <= STALE_S
        if live is not self._live:
            self._live = live
            self._index.set_live(self.slot, live)

    def is_trusted(self, now: float) -> bool:
        """Return True if a Step or a hello has come lately."""
        return self.state is not FeedState.CONNECTING and now - self._last_step <= UNTRUSTED_S

    def is_lost(self, now: float) -> bool:
        return self.state is not FeedState.CONNECTING and now - self._last_step > LOST_S

    @property
    def num_held(self) -> int:
        return self._index.num_held(self.slot)

    @property
    def confidence(self) -> float:
        """Weight of a token that the index reports as cached, from 0 to 1."""
        return 1.0 if self.state is FeedState.LIVE else STALE_CONFIDENCE

    def _advance(self, step: replica_pb2.Step, now: float) -> None:
        if self.state is FeedState.LIVE:
            self._apply_in_order(step, now)
        self._received = step.seq

    def _apply_in_order(self, step: replica_pb2.Step, now: float) -> None:
        """Apply a Step, unless the snapshot contains it."""
        in_order = self._received is None or step.seq == self._received + 1
        if in_order and step.seq <= self._applied:
            return
        if step.seq != self._applied + 1:
            self._resync(ResyncReason.SEQUENCE_GAP, now)
        elif step.events_lost:
            self._resync(ResyncReason.EVENTS_LOST, now)
        elif wrong := self._apply(step):
            self._resync(wrong, now)
        else:
            self._applied = step.seq
            if now - self._since > CALM_S:
                self._attempts = 0

    def _apply(self, step: replica_pb2.Step) -> ResyncReason | None:
        index, slot = self._index, self.slot
        for event in step.events:
            match event.WhichOneof("event"):
                case "stored":
                    stored = event.stored
                    if stored.HasField("parent") and not index.holds(slot, stored.parent):
                        return ResyncReason.ORPHAN
                    index.store(slot, stored.hashes)
                case "removed":
                    if index.remove(slot, event.removed.hashes):
                        return ResyncReason.UNKNOWN_BLOCK
                case "cleared":
                    index.replace(slot, ())
                case _:
                    return ResyncReason.MALFORMED
        if self._capacity and index.num_held(slot) > self._capacity:
            return ResyncReason.CAPACITY
        if step.HasField("digest"):
            if index.num_held(slot) != step.n_blocks:
                return ResyncReason.COUNT
            if index.digest(slot) != _digest(step.digest):
                return ResyncReason.DIGEST
        return None

    def _resync(self, reason: ResyncReason, now: float) -> None:
        self.resyncs[reason] += 1
        self._on_resync(reason)
        self._buffer.clear()
        self._enter(FeedState.GAP, now)
        if reason is ResyncReason.CONNECTED:
            self._due = now
        else:
            backoff = min(MAX_BACKOFF_S, MIN_BACKOFF_S * 2**self._attempts)
            self._due = now + backoff * (0.5 + self._jitter())
            self._attempts = min(self._attempts + 1, 16)

    def _replace_slot(self) -> None:
        """Drop the keys of an engine that no longer runs. A new slot costs O(1), and the sweep removes the old keys."""
        self._index.drop_slot(self.slot)
        self.slot = self._index.add_slot()
        self._live = False
        self.has_been_live = False

    def _enter(self, state: FeedState, now: float) -> None:
        if self.state is FeedState.LIVE and state is not FeedState.LIVE:
            self._stale_since = now
            self.has_been_live = True
        self.state = state
        self._since = now


def _digest(message: replica_pb2.Digest) -> Digest:
    return Digest(message.xor, message.sum)
