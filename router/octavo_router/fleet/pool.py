"""The pool of replicas: the one entry for requests, and the life of all that the fleet keeps."""

import asyncio
from collections.abc import Callable, Iterable

from octavo_api.errors import DeadlineExceeded, Draining
from octavo_api.lengths import check_length
from octavo_api.settings import RouterSettings
from octavo_api.v1 import replica_pb2
from octavo_router.fleet.admission import Admission
from octavo_router.fleet.engine_request import EngineRequest
from octavo_router.fleet.holding import Holding
from octavo_router.fleet.members import Members
from octavo_router.fleet.observer import NullObserver, Observer
from octavo_router.fleet.placement import Placement
from octavo_router.fleet.replica_status import ReplicaAddress, ReplicaStatus
from octavo_router.fleet.routed_request import RoutedRequest
from octavo_router.routing.index import DictIndex
from octavo_router.routing.overlay import Overlay
from octavo_router.routing.select import Selector


class ReplicaPool:
    """Implementation of ``engine_request.Pool``. It belongs to one event loop; only ``__init__`` may run outside of it.

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
        self._observer = metrics or NullObserver()
        self._admission = Admission(
            max_inflight=settings.max_inflight_requests, max_queued=settings.max_queued_requests
        )
        selector = Selector(DictIndex(), Overlay())
        self.members = Members(
            gateway=gateway, secret=secret, index=selector.index, overlay=selector.overlay, observer=self._observer
        )
        self._holding = Holding(self.members, self._admission, on_wanted=on_wanted, on_change=self._queue_changed)
        self._placement = Placement(self.members, self._holding, selector, self._observer, policy=settings.policy)
        self._inflight: set[RoutedRequest] = set()

    @property
    def limits(self) -> replica_pb2.Limits | None:
        return self.members.limits

    @property
    def holds_requests(self) -> bool:
        return self._holding.enabled

    @property
    def inflight_requests(self) -> int:
        return self._admission.inflight

    @property
    def queued_requests(self) -> int:
        return self._admission.queued + self._holding.count

    def replicas(self) -> list[ReplicaStatus]:
        return self.members.statuses()

    def update_replicas(self, wanted: Iterable[ReplicaAddress]) -> None:
        """Make ``wanted`` the set of replicas. A removed replica keeps the requests that it has."""
        self.members.update(wanted)

    def reconfigure(self, settings: RouterSettings) -> None:
        """Apply new settings. All of the pool's settings change live."""
        self._placement.policy = settings.policy
        self._admission.reconfigure(
            max_inflight=settings.max_inflight_requests, max_queued=settings.max_queued_requests
        )

    def hold_requests(self, hold: bool) -> None:
        """Set ``holds_requests``. False rejects the waiting requests."""
        self._holding.enable(hold)

    async def open(self, request: EngineRequest) -> RoutedRequest:
        """Implement ``engine_request.Pool``. Hold the result in ``contextlib.aclosing``."""
        try:
            await self._holding.wait_for_replica(request.deadline)
            if (limits := self.limits) is not None:
                check_length(
                    len(request.token_ids),
                    request.sampling.max_tokens,
                    max_model_len=limits.max_model_len,
                    kv_cache_tokens=limits.kv_cache_tokens,
                )
            async with asyncio.timeout_at(request.deadline):
                await self._admit(request.priority)
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed while the request waited in the gateway") from None
        routed = RoutedRequest(request, self._placement, on_end=self._request_ended)
        self._inflight.add(routed)
        try:
            await routed.place()
        except BaseException:
            await routed.aclose()
            raise
        return routed

    async def close(self) -> None:
        """End everything: requests with ``Draining``, then the streams to all replicas. Later requests are rejected."""
        self._holding.stop()
        error = Draining("the gateway is shutting down")
        self._admission.reject_waiting(error)
        for request in list(self._inflight):
            request.fail(error)
        await self.members.close()

    async def _admit(self, priority: int) -> None:
        try:
            await self._admission.acquire(priority, asyncio.get_running_loop().time())
        finally:
            self._queue_changed()

    def _request_ended(self, request: RoutedRequest) -> None:
        self._inflight.discard(request)
        self._admission.release(asyncio.get_running_loop().time())
        if request.num_output_tokens:
            self._placement.observe_output(request.num_output_tokens / request.request.sampling.n)
        self._queue_changed()

    def _queue_changed(self) -> None:
        self._observer.queue(self.queued_requests)
        self._observer.inflight(self._admission.inflight)
