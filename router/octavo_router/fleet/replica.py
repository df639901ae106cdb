"""The router's view of one replica: its link, its feed, its load, and the attempts that it answers."""

import asyncio
import itertools
import logging
import random
from collections.abc import Callable
from hashlib import blake2b

from octavo_api.blocks import HashSpace, low64
from octavo_api.errors import ReplicaLost
from octavo_api.v1 import replica_pb2
from octavo_router.fleet.attempt import Attempt
from octavo_router.fleet.link import ReplicaLink
from octavo_router.fleet.observer import Observer
from octavo_router.fleet.replica_status import ReplicaAddress, ReplicaState, ReplicaStatus
from octavo_router.routing.cost import Candidate
from octavo_router.routing.feed import Feed, FeedState, ResyncReason
from octavo_router.routing.index import PrefixIndex
from octavo_router.routing.overlay import Overlay
from octavo_router.routing.replica_load import FleetRates, ReplicaLoad

log = logging.getLogger(__name__)


class Replica:
    """One replica, created on the event loop. ``on_change`` is called when the replica may have become routable or not.

    ``candidate`` holds the inputs of a decision. It is None while the replica takes no requests. A change of its
    sources creates it again.
    """

    def __init__(
        self,
        address: ReplicaAddress,
        *,
        gateway: str,
        secret: str,
        index: PrefixIndex,
        overlay: Overlay,
        fleet: FleetRates,
        observer: Observer,
        on_change: Callable[[], None],
    ) -> None:
        self.address = address
        self.candidate: Candidate | None = None
        self.limits: replica_pb2.Limits | None = None
        self.load = ReplicaLoad(fleet)
        self.retired = False
        self._rendezvous_key = low64(blake2b(address.name.encode(), digest_size=8).digest())
        self._observer = observer
        self._overlay = overlay
        self._on_change = on_change
        self._feed = Feed(index, jitter=random.random, on_resync=self._report_resync)
        self._link = ReplicaLink(address, gateway=gateway, secret=secret, receiver=self)
        self._space: HashSpace | None = None
        self._attempts: dict[int, Attempt] = {}
        self._ids = itertools.count(1)
        self._detail = "connecting"
        self._state: ReplicaState | None = None
        self._clock = asyncio.get_running_loop().time

    @property
    def name(self) -> str:
        return self.address.name

    @property
    def slot(self) -> int:
        return self._feed.slot

    @property
    def is_connecting(self) -> bool:
        """True until the first hello after each connection attempt."""
        return self._feed.state is FeedState.CONNECTING and not self.retired

    @property
    def num_requests(self) -> int:
        return len(self._attempts)

    def start(self) -> None:
        self._report_state(self._clock())
        self._link.start()

    def send(self, attempt: Attempt, submit: replica_pb2.Submit, *, uncached_tokens: int, blocks: int) -> None:
        """Submit a request and reserve its load. Its outputs go to ``attempt``, which gets its id on this stream."""
        attempt.id = submit.id = next(self._ids)
        self._attempts[attempt.id] = attempt
        self.load.reserve(attempt.id, uncached_tokens=uncached_tokens, blocks=blocks)
        self._link.submit(submit)
        self._refresh()

    def abort_choice(self, id: int, choice: int) -> None:
        self._link.abort(id, choice)

    def release(self, id: int, *, abort: bool) -> None:
        """Release an attempt. With ``abort`` the engine is notified that no client waits for it. Idempotent."""
        if self._attempts.pop(id, None) is None:
            return
        self.load.release(id)
        if abort:
            self._link.abort(id)
        self._refresh()
        if self.retired and not self._attempts:
            self._on_change()

    def retire(self) -> None:
        """Take no new requests. The index forgets the replica at once."""
        self.retired = True
        self._overlay.forget(self._feed.slot)
        self._feed.close()
        self.candidate = None
        self._observer.replica_removed(self.name)

    async def close(self) -> None:
        if not self.retired:
            self.retire()
        await self._link.close()

    def tick(self, now: float) -> None:
        """Check for silence, and request snapshots that are due."""
        if self._feed.is_lost(now):
            self._link.reset()
        if self.retired:
            return
        self._feed.tick(now)
        if self._feed.snapshot_due(now):
            self._link.request_snapshot()
        self._refresh(now)

    def suspect(self, reason: ResyncReason) -> None:
        self._feed.suspect(reason, self._clock())

    def status(self) -> ReplicaStatus:
        now = self._clock()
        return ReplicaStatus(
            name=self.name,
            host=self.address.host,
            port=self.address.port,
            state=self._state_at(now),
            routable=self.candidate is not None,
            epoch=self._feed.epoch,
            load=self.load.report if self._feed.is_trusted(now) else None,
            inflight_requests=len(self._attempts),
            cached_keys=self._feed.num_held,
            resyncs={reason.value: count for reason, count in self._feed.resyncs.items()},
            detail=self._detail,
        )

    def on_hello(self, hello: replica_pb2.Hello) -> None:
        self._detail = ""
        self.limits = hello.limits
        self._space = HashSpace(hello.model_key, hello.kv_dtype, hello.block_size, max(1, hello.stride))
        if not self.retired:
            self._feed.connected(hello, self._clock())
            self.tick(self._clock())

    def on_step(self, step: replica_pb2.Step) -> None:
        attempts = self._attempts
        for output in step.outputs:
            attempt = attempts.get(output.id)
            if attempt is not None:
                if not attempt.started:
                    self.load.mark_started(output.id)
                try:
                    attempt.deliver(output)
                except Exception:
                    log.exception("%s: could not deliver an output of request %d", self.name, output.id)
        now = self._clock()
        if self.retired:
            self._feed.mark_alive(now)
            return
        if step.HasField("load"):
            self.load.update(step.load)
            self._observer.engine_load(self.name, step.load)
        try:
            self._feed.step(step, now)
        except Exception:
            log.exception("%s: could not apply block events", self.name)
            self._feed.suspect(ResyncReason.MALFORMED, now)
        if self._feed.snapshot_due(now):
            self._link.request_snapshot()
        self._refresh(now)

    def on_snapshot(self, snapshot: replica_pb2.Snapshot) -> None:
        if not self.retired:
            self._feed.snapshot(snapshot, self._clock())
            self._refresh()

    def on_lost(self, detail: str) -> None:
        self._detail = detail
        self.load.forget()
        self.limits = None
        if not self.retired:
            self._overlay.forget(self._feed.slot)
            self._feed.disconnected(self._clock())
        self._refresh()
        self._lose_attempts(detail)

    def _lose_attempts(self, detail: str) -> None:
        attempts, self._attempts = self._attempts, {}
        for id, attempt in attempts.items():
            self.load.release(id)
            attempt.lose(ReplicaLost(f"replica {self.name} was lost while it generated the answer ({detail})"))
        if self.retired:
            self._on_change()

    def _refresh(self, now: float | None = None) -> None:
        now = self._clock() if now is None else now
        feed = self._feed
        report = self.load.report
        space = self._space
        before = self.candidate
        draining = report is not None and report.draining
        if self.retired or space is None or draining or feed.state is FeedState.CONNECTING or feed.is_lost(now):
            self.candidate = None
        else:
            self.candidate = Candidate.of(
                self.load.view(trusted=feed.is_trusted(now)),
                name=self.name,
                rendezvous_key=self._rendezvous_key,
                slot=feed.slot,
                space=space,
                confidence=feed.confidence,
            )
        if (before is None) is not (self.candidate is None):
            self._on_change()
        self._report_state(now)

    def _report_resync(self, reason: ResyncReason) -> None:
        self._observer.resync(self.name, reason)
        if reason is not ResyncReason.CONNECTED:
            log.warning("%s: block events are unreliable (%s), requesting a snapshot", self.name, reason)

    def _report_state(self, now: float) -> None:
        state = self._state_at(now)
        if state is not self._state and not self.retired:
            self._state = state
            self._observer.feed_state(self.name, state)

    def _state_at(self, now: float) -> ReplicaState:
        feed = self._feed
        if feed.state is FeedState.CONNECTING:
            return ReplicaState.CONNECTING
        if self.retired or (self.load.report is not None and self.load.report.draining):
            return ReplicaState.DRAINING
        if not feed.is_trusted(now):
            return ReplicaState.UNTRUSTED
        if feed.state is FeedState.LIVE:
            return ReplicaState.LIVE
        return ReplicaState.RESYNCING if feed.has_been_live else ReplicaState.SYNCING
