"""Every request's way to a replica: admission, limits, hashes, decision, and the streams to all replicas."""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from octavo_api.blocks import HashSpace
from octavo_api.errors import (
    CacheCapacityExceeded,
    ContextLengthExceeded,
    DeadlineExceeded,
    Draining,
    NoReplica,
)
from octavo_api.settings import RouterSettings
from octavo_api.v1 import replica_pb2
from octavo_router.fleet.admission import Admission
from octavo_router.fleet.engine_request import EngineRequest
from octavo_router.fleet.observer import NullObserver, Observer
from octavo_router.fleet.replica import Replica
from octavo_router.fleet.replica_status import ReplicaAddress, ReplicaStatus, changes
from octavo_router.fleet.routed_request import RoutedRequest
from octavo_router.fleet.waiting import WaitingRoom
from octavo_router.routing.chain import Chain, hash_prompt
from octavo_router.routing.cost import Candidate
from octavo_router.routing.feed import ResyncReason
from octavo_router.routing.index import DictIndex
from octavo_router.routing.overlay import Overlay
from octavo_router.routing.replica_load import FleetRates
from octavo_router.routing.route import Reason, Route
from octavo_router.routing.select import Selector

WATCH_INTERVAL_S = 0.1
CONNECT_GRACE_S = 1.0
"""Maximum seconds that a request waits for a replica that is known and not yet connected."""

HOLD_MARGIN_S = 0.1
"""Seconds before its deadline at which a request held in vain is rejected. The deadline would end it otherwise."""
HOLD_RETRY_AFTER_S = 10.0
"""Seconds after which a client should retry. A first replica takes seconds to minutes."""

MIN_PREDICTION_S = 2.0
MAX_PREDICTION_S = 60.0
SWEEP_KEYS = 5_000
HASH_OFF_LOOP_TOKENS = 4096
FIRST_MEAN_OUTPUT_TOKENS = 128.0
OUTPUT_SMOOTHING = 0.05


class ReplicaPool:
    """Implementation of ``stream.Dispatcher``. It belongs to one event loop; only ``__init__`` may run outside of it.

    ``gateway`` is the name that replicas log. ``secret`` is the secret that they require. ``on_wanted`` receives
    True when a first held request waits for a replica to start, and False when no request waits any more.
    """

    def __init__(
        self,
        settings: RouterSettings,
        *,
        gateway: str,
        secret: str = "",
        metrics: Observer | None = None,
        on_wanted: Callable[[bool], None] = lambda wanted: None,
    ) -> None:
        self._settings = settings
        self._gateway = gateway
        self._secret = secret
        self._observer = metrics or NullObserver()
        self._index = DictIndex()
        self._selector = Selector(self._index, Overlay())
        self._fleet = FleetRates()
        self._admission = Admission(
            max_inflight=settings.max_inflight_requests, max_queued=settings.max_queued_requests
        )
        self._replicas: dict[str, Replica] = {}
        self._retired: set[Replica] = set()
        self._routable: list[Replica] = []
        self._spaces: set[HashSpace] = set()
        self._limits: replica_pb2.Limits | None = None
        self._inflight: set[RoutedRequest] = set()
        self._mean_output_tokens = FIRST_MEAN_OUTPUT_TOKENS
        self._waiting_room = WaitingRoom(on_wanted)
        self.holds_requests = False
        """True if replicas start on demand. Then requests wait while there is no replica."""
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._draining = False
        self._watcher: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def limits(self) -> replica_pb2.Limits | None:
        """The smallest limits that reachable replicas have announced; None if no replica is reachable."""
        return self._limits

    @property
    def inflight_requests(self) -> int:
        return self._admission.inflight

    @property
    def queued_requests(self) -> int:
        return self._admission.queued + self._waiting_room.count

    def replicas(self) -> list[ReplicaStatus]:
        return [replica.status() for _, replica in sorted(self._replicas.items())]

    def update_replicas(self, wanted: Iterable[ReplicaAddress]) -> None:
        """Make ``wanted`` the set of replicas. A removed replica keeps the requests that it has."""
        known = {name: replica.address for name, replica in self._replicas.items()}
        difference = changes(known, wanted)
        for address in difference.removed:
            replica = self._replicas.pop(address.name)
            replica.retire()
            self._retired.add(replica)
        for address in difference.added:
            replica = self._replicas[address.name] = Replica(
                address,
                gateway=self._gateway,
                secret=self._secret,
                index=self._index,
                overlay=self._selector.overlay,
                fleet=self._fleet,
                observer=self._observer,
                on_change=self._replicas_changed,
            )
            replica.start()
        self._replicas_changed()
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch(), name="replica watch")

    def reconfigure(self, settings: RouterSettings) -> None:
        """Apply new settings. All of the router's settings change live, but running requests keep their deadlines."""
        self._settings = settings
        self._admission.reconfigure(
            max_inflight=settings.max_inflight_requests, max_queued=settings.max_queued_requests
        )

    def hold_requests(self, hold: bool) -> None:
        """Set ``holds_requests``. False rejects the waiting requests."""
        self.holds_requests = hold
        self._changed.set()

    async def open(self, request: EngineRequest) -> RoutedRequest:
        """Implement ``stream.Dispatcher``. Hold the result in ``contextlib.aclosing``."""
        if self._draining:
            raise Draining("the gateway is shutting down and takes no new requests")
        now = _now()
        deadline = now + self._settings.request_timeout_seconds
        if request.deadline is not None:
            deadline = min(deadline, request.deadline)
        try:
            await self._candidates(frozenset(), deadline)
            self._check_limits(request)
            async with asyncio.timeout_at(deadline):
                await self._admit(request.priority, now)
        except TimeoutError:
            raise DeadlineExceeded("the request's deadline has passed while it waited") from None
        routed = RoutedRequest(request, deadline, self)
        self._inflight.add(routed)
        try:
            await self.place(routed)
        except BaseException:
            await routed.aclose()
            raise
        return routed

    async def drain(self, timeout_s: float) -> bool:
        """Reject new requests and wait for accepted ones to end. Return False if ``timeout_s`` passes before that."""
        self._draining = True
        self._changed.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._admission.inflight or self.queued_requests:
                    self._idle.clear()
                    await self._idle.wait()
        return not self._admission.inflight and not self.queued_requests

    async def close(self) -> None:
        """End everything: requests with ``Draining``, then the streams to all replicas."""
        self._draining = True
        self._changed.set()
        error = Draining("the gateway is shutting down")
        self._admission.refuse_waiting(error)
        for request in list(self._inflight):
            request.fail(error)
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None
        replicas = [*self._replicas.values(), *self._retired]
        self._replicas.clear()
        await asyncio.gather(*(replica.close() for replica in replicas), *self._closing)
        self._replicas_changed()

    async def place(self, request: RoutedRequest) -> None:
        """Implement ``routed_request.Placer``."""
        try:
            while True:
                candidates = await self._candidates(request.excluded, request.deadline)
                missing = self._spaces - request.chains.keys()
                if not missing:
                    break
                async with asyncio.timeout_at(request.deadline):
                    for space in missing:
                        request.chains[space] = await _hash(request.request, space)
        except TimeoutError:
            raise DeadlineExceeded("the request's deadline has passed while it waited for a replica") from None
        if not request.has_ended:
            self._send(request, candidates)

    def ended(self, request: RoutedRequest) -> None:
        """Implement ``routed_request.Placer``."""
        self._inflight.discard(request)
        self._admission.release(_now())
        if request.num_output_tokens:
            each = request.num_output_tokens / request.request.sampling.n
            self._mean_output_tokens += OUTPUT_SMOOTHING * (each - self._mean_output_tokens)
        self._observe_queue()
        self._idle.set()

    def predicted(self, request: RoutedRequest, cached_tokens: int) -> None:
        """Implement ``routed_request.Placer``."""
        if request.route is not None:
            self._observer.prediction(request.route.predicted_cached_tokens, cached_tokens)

    def _send(self, request: RoutedRequest, candidates: list[Candidate]) -> None:
        """Decide, reserve and predict without a turn of the loop between, so that the next decision sees all three."""
        engine_request = request.request
        sampling = engine_request.sampling
        prompt = len(engine_request.token_ids)
        output = min(sampling.max_tokens or self._mean_output_tokens, self._mean_output_tokens) * sampling.n
        started = time.perf_counter()
        now = _now()
        decision = self._selector.select(
            candidates,
            request.chains,
            prompt_tokens=prompt,
            output_tokens=output,
            policy=self._settings.policy,
            now=now,
        )
        assert decision is not None, "place() waits for candidates"
        self._observer.select_seconds(time.perf_counter() - started)
        chosen = decision.candidate
        chain = request.chains[chosen.space]
        replica = self._replicas[chosen.name]
        uncached = prompt - decision.cached_tokens
        submit = replica_pb2.Submit(
            request_id=engine_request.request_id,
            token_ids=engine_request.token_ids,
            hashes=chain.packed,
            sampling=sampling.to_proto(),
            priority=engine_request.priority,
            cache_salt=engine_request.cache_salt,
            timeout_s=max(0.001, request.deadline - now),
        )
        blocks = int(uncached + output) // chosen.space.block_size + 1
        identity = replica.send(request, submit, uncached_tokens=uncached, blocks=blocks)
        ttl = min(MAX_PREDICTION_S, max(MIN_PREDICTION_S, 2 * decision.cost_s))
        self._selector.overlay.record(chain.keys, decision.known_keys, chosen.slot, now, ttl)
        route = Route(
            replica=chosen.name,
            policy=self._settings.policy.value,
            reason=Reason.RETRY if request.tries else decision.reason,
            predicted_cached_tokens=decision.cached_tokens,
            cost_s=decision.cost_s,
        )
        request.sent(replica, identity, route)
        self._observer.decision(route)

    async def _candidates(self, excluded: Iterable[str], deadline: float) -> list[Candidate]:
        """Return the replicas that can take a request now. If there are none, wait for one that connects or may start.

        Raise ``NoReplica``. Raise ``TimeoutError`` if the deadline has passed. Call this within no other timer.
        If another timer fired in the same turn, the caller could not distinguish the two.
        """
        try:
            return await self._connected(excluded, deadline)
        except NoReplica:
            if self._routable or not self.holds_requests:
                raise
        return await self._held(excluded, deadline - HOLD_MARGIN_S)

    async def _held(self, excluded: Iterable[str], until: float) -> list[Candidate]:
        waiting = self.queued_requests
        if waiting >= max(1, self._settings.max_queued_requests):  # one request must be able to wake the first replica
            raise NoReplica(
                f"no engine replica is up yet, and {waiting} requests wait for one already "
                f"(max_queued_requests {self._settings.max_queued_requests})",
                retry_after_s=HOLD_RETRY_AFTER_S,
            )
        try:
            with self._waiting_room.seat():
                self._observe_queue()
                async with asyncio.timeout_at(until):
                    while not (found := self._free(excluded)):
                        if self._draining:
                            raise Draining("the gateway is shutting down")
                        if not self.holds_requests:
                            raise self._no_replica(excluded)
                        self._changed.clear()
                        await self._changed.wait()
                return found
        except TimeoutError:
            raise NoReplica(
                "no engine replica came up in the time that the request may take", retry_after_s=HOLD_RETRY_AFTER_S
            ) from None
        finally:
            self._observe_queue()
            self._idle.set()

    def _free(self, excluded: Iterable[str]) -> list[Candidate]:
        return [
            replica.candidate
            for replica in self._routable
            if replica.candidate is not None and replica.name not in excluded
        ]

    async def _connected(self, excluded: Iterable[str], deadline: float) -> list[Candidate]:
        until = min(_now() + CONNECT_GRACE_S, deadline)
        while True:
            now = _now()
            if now >= deadline:
                raise TimeoutError
            if found := self._free(excluded):
                return found
            coming = any(replica.is_connecting and replica.name not in excluded for replica in self._replicas.values())
            if self._draining:
                raise Draining("the gateway is shutting down")
            if not coming or now >= until:
                raise self._no_replica(excluded)
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._changed.wait()

    def _no_replica(self, excluded: Iterable[str]) -> NoReplica:
        if not self._replicas:
            return NoReplica("no engine replica is known yet", retry_after_s=1.0)
        states = ", ".join(f"{each.name}: {each.state.value}" for each in self.replicas())
        tried = f"; tried {', '.join(sorted(excluded))}" if excluded else ""
        return NoReplica(f"no engine replica can take the request ({states}{tried})", retry_after_s=1.0)

    async def _admit(self, priority: int, now: float) -> None:
        try:
            await self._admission.acquire(priority, now)
        finally:
            self._observe_queue()
            self._idle.set()

    def _check_limits(self, request: EngineRequest) -> None:
        limits = self.limits
        if limits is None:
            return
        prompt, most = len(request.token_ids), request.sampling.max_tokens
        total = prompt + (most or 1)
        asked = f"the prompt has {prompt} tokens" + (f" and max_tokens is {most}, together {total}" if most else "")
        if limits.max_model_len and total > limits.max_model_len:
            raise ContextLengthExceeded(
                f"{asked}; allowed: at most {limits.max_model_len} tokens (max_model_len), one of them generated",
                param="max_tokens" if most and prompt < limits.max_model_len else "prompt",
            )
        if limits.kv_cache_tokens and total > limits.kv_cache_tokens:
            raise CacheCapacityExceeded(
                f"{asked}; allowed: at most {limits.kv_cache_tokens} tokens, which is what a replica's KV cache holds",
                param="max_tokens" if most and prompt < limits.kv_cache_tokens else "prompt",
            )

    def _replicas_changed(self) -> None:
        self._routable = [each for _, each in sorted(self._replicas.items()) if each.candidate is not None]
        self._spaces = {each.candidate.space for each in self._routable if each.candidate is not None}
        self._limits = _smallest([each.limits for each in self._routable if each.limits is not None])
        for replica in [each for each in self._retired if not each.num_requests]:
            self._retired.remove(replica)
            task = asyncio.create_task(replica.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        self._changed.set()

    def _observe_queue(self) -> None:
        self._observer.queue(self.queued_requests)
        self._observer.inflight(self._admission.inflight)

    async def _watch(self) -> None:
        """Check the replicas for silence.

        Skip a turn that itself comes late, because it proves nothing about replicas.
        """
        last = _now()
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            now = _now()
            late, last = now - last > 5 * WATCH_INTERVAL_S, now
            if late:
                continue
            suspects = self._index.take_suspects()
            for replica in [*self._replicas.values(), *self._retired]:
                if not replica.retired and suspects >> replica.slot & 1:
                    replica.suspect(ResyncReason.PATH_GAP)
                replica.tick(now)
            self._index.sweep(SWEEP_KEYS)
            self._observer.index_size(self._index.num_keys, self._index.path_gaps)


def _smallest(announced: list[replica_pb2.Limits]) -> replica_pb2.Limits | None:
    if not announced:
        return None
    names = [field.name for field in replica_pb2.Limits.DESCRIPTOR.fields]
    return replica_pb2.Limits(**{name: min(getattr(each, name) for each in announced) for name in names})


async def _hash(request: EngineRequest, space: HashSpace) -> Chain:
    if len(request.token_ids) <= HASH_OFF_LOOP_TOKENS:
        return hash_prompt(request.token_ids, space, request.cache_salt)
    return await asyncio.to_thread(hash_prompt, request.token_ids, space, request.cache_salt)


def _now() -> float:
    return asyncio.get_running_loop().time()
