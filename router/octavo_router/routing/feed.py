"""What the router knows of one replica's cache, kept true by the replica's own events.

::

    CONNECTING ── hello ──> SNAPSHOT ── snapshot grafted ──> LIVE
                               ^                              │ gap, events lost, orphan, wrong digest, new epoch, ...
                               └───── back-off is over ── GAP <┘

Whatever is wrong is repaired in one way, by a snapshot, and has a ``ResyncReason``. While that takes, the keys known
before stay in use, at ``STALE_CONFIDENCE``, for ``STALE_S`` at the most. A replica that says nothing is *untrusted*:
its keys are hidden and its load is unknown, which is not zero.

Pure: time comes in as ``now`` (seconds of any monotonic clock), requests for snapshots go out by ``snapshot_due``.
"""

from collections import Counter, deque
from collections.abc import Callable
from enum import StrEnum

from octavo_api.v1 import replica_pb2
from octavo_router.routing.index import Digest, PrefixIndex

UNTRUSTED_S = 1.0
"""Without a Step for so long, keys and load count as unknown."""

LOST_S = 3.0
"""Without a Step for so long, the replica takes no requests and its link is given up."""

STALE_S = 5.0
STALE_CONFIDENCE = 0.5

SNAPSHOT_TIMEOUT_S = 5.0
CALM_S = 10.0
"""LIVE for so long, a replica's next resynchronisation starts again with the shortest back-off."""

MIN_BACKOFF_S = 0.05
MAX_BACKOFF_S = 5.0
MAX_BUFFERED_STEPS = 1024


class FeedState(StrEnum):
    CONNECTING = "connecting"
    SNAPSHOT = "snapshot"
    LIVE = "live"
    GAP = "gap"


class ResyncReason(StrEnum):
    """Why a snapshot is needed."""

    CONNECTED = "connected"
    EPOCH = "epoch"
    """The engine has started anew."""
    SEQUENCE_GAP = "sequence_gap"
    EVENTS_LOST = "events_lost"
    """The replica says that it dropped events."""
    ORPHAN = "orphan"
    """A block was stored after one that the replica does not hold."""
    UNKNOWN_BLOCK = "unknown_block"
    """A block was removed that the replica does not hold."""
    DIGEST = "digest"
    COUNT = "count"
    CAPACITY = "capacity"
    """It says to hold more blocks than it has."""
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
        """Starts a new stream: with the epoch known before, the old keys are kept until the snapshot."""
        if hello.epoch != self.epoch:
            self._forget()
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
        """Gives the slot back."""
        self._index.drop_slot(self.slot)

    def heard(self, now: float) -> None:
        """The replica is alive."""
        self._last_step = now

    def step(self, step: replica_pb2.Step, now: float) -> None:
        """Takes a Step in the order of its stream."""
        self.heard(now)
        if step.epoch != self.epoch:
            self._forget()
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
        """Grafts a snapshot: Steps that came since it was asked for are applied on top, as far as it lacks them."""
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
        """Asks for a resynchronisation that something outside of the feed found necessary."""
        if self.state is FeedState.LIVE:
            self._resync(reason, now)

    def snapshot_due(self, now: float) -> bool:
        """True once for each snapshot that is to be asked for now."""
        if self.state is FeedState.SNAPSHOT and now - self._since > SNAPSHOT_TIMEOUT_S:
            self._resync(ResyncReason.SNAPSHOT_TIMEOUT, now)
        if self.state is not FeedState.GAP or now < self._due:
            return False
        self._buffer.clear()
        self._enter(FeedState.SNAPSHOT, now)
        return True

    def tick(self, now: float) -> None:
        """Shows or hides the slot as time goes by."""
        if self.state is FeedState.CONNECTING or not self.trusted(now):
            live = False
        else:
            live = self.state is FeedState.LIVE or now - self._stale_since <= STALE_S
        if live is not self._live:
            self._live = live
            self._index.set_live(self.slot, live)

    def trusted(self, now: float) -> bool:
        """True where the replica has been heard lately."""
        return self.state is not FeedState.CONNECTING and now - self._last_step <= UNTRUSTED_S

    def lost(self, now: float) -> bool:
        return self.state is not FeedState.CONNECTING and now - self._last_step > LOST_S

    @property
    def num_held(self) -> int:
        return self._index.num_held(self.slot)

    @property
    def confidence(self) -> float:
        """How much a token that the index says is cached counts."""
        return 1.0 if self.state is FeedState.LIVE else STALE_CONFIDENCE

    def _advance(self, step: replica_pb2.Step, now: float) -> None:
        if self.state is FeedState.LIVE:
            self._take(step, now)
        self._received = step.seq

    def _take(self, step: replica_pb2.Step, now: float) -> None:
        """Applies a Step, unless the snapshot contains it."""
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

    def _forget(self) -> None:
        """What an engine held that is no more is nobody's: a new slot costs O(1), the sweep does the rest."""
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
