"""Requests without a replica: which of them wait, for what, until when, and which are rejected."""

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

from octavo_api.errors import Draining, NoReplica
from octavo_router.fleet.admission import Admission
from octavo_router.fleet.members import Members
from octavo_router.routing.cost import Candidate

CONNECT_GRACE_S = 1.0
"""Maximum seconds that a request waits for a replica that is known and not yet connected."""

HOLD_MARGIN_S = 0.1
"""Seconds before its deadline at which a request held in vain is rejected. The deadline would end it otherwise."""

HOLD_RETRY_AFTER_S = 10.0
"""Seconds after which a client should retry. A first replica takes seconds to minutes."""


class Holding:
    """Wait for candidates.

    Each request waits a moment for replicas that are connecting. If replicas start on demand (``enabled``), requests
    also wait for a replica to start. These requests are *held*: ``count`` is their number.

    ``on_wanted`` receives True when the first request is held, and False when no request is held any more.
    ``on_change`` is called whenever ``count`` may have changed.
    """

    def __init__(
        self,
        members: Members,
        admission: Admission,
        *,
        on_wanted: Callable[[bool], None],
        on_change: Callable[[], None],
    ) -> None:
        self.enabled = False
        self.count = 0
        self._members = members
        self._admission = admission
        self._on_wanted = on_wanted
        self._on_change = on_change
        self._stopped = False

    def enable(self, enabled: bool) -> None:
        """Set ``enabled``. False rejects the held requests."""
        self.enabled = enabled
        self._members.changed.set()

    def stop(self) -> None:
        """Reject all requests that have no replica, now and later: the gateway is shutting down."""
        self._stopped = True
        self._members.changed.set()

    async def wait_for_replica(self, deadline: float) -> None:
        """Return once a replica can take requests. Raise the errors of ``candidates``.

        A new request waits here before its admission. So it does not take the place of a running request, and the
        replicas' limits are known afterwards.
        """
        await self.candidates(frozenset(), deadline)

    async def candidates(self, excluded: Collection[str], deadline: float) -> list[Candidate]:
        """Return the replicas that can take a request now. If there are none, wait for one that connects or may start.

        Raise ``NoReplica`` or ``Draining``. Raise ``TimeoutError`` if the deadline has passed. Call this within no
        other timer. If another timer fired in the same turn, the caller could not distinguish the two.
        """
        try:
            return await self._connected(excluded, deadline)
        except NoReplica:
            if self._members.routable or not self.enabled:
                raise
        return await self._started(excluded, deadline - HOLD_MARGIN_S)

    async def _connected(self, excluded: Collection[str], deadline: float) -> list[Candidate]:
        clock = asyncio.get_running_loop().time
        until = min(clock() + CONNECT_GRACE_S, deadline)
        while True:
            now = clock()
            if now >= deadline:
                raise TimeoutError
            if found := self._candidates(excluded):
                return found
            if now >= until or not self._members.has_connecting(excluded):
                raise self._no_replica(excluded)
            self._members.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._members.changed.wait()

    async def _started(self, excluded: Collection[str], until: float) -> list[Candidate]:
        self._check_room()
        try:
            with self._held():
                async with asyncio.timeout_at(until):
                    while not (found := self._candidates(excluded)):
                        if not self.enabled:
                            raise self._no_replica(excluded)
                        self._members.changed.clear()
                        await self._members.changed.wait()
                return found
        except TimeoutError:
            raise NoReplica(
                "no engine replica started within the time limit of the request", retry_after_s=HOLD_RETRY_AFTER_S
            ) from None

    def _candidates(self, excluded: Collection[str]) -> list[Candidate]:
        if self._stopped:
            raise Draining("the gateway is shutting down")
        return self._members.candidates(excluded)

    def _check_room(self) -> None:
        """Raise ``NoReplica`` if as many requests wait as may. One request is always held, to start a replica."""
        limit = self._admission.max_queued
        waiting = self._admission.queued + self.count
        if waiting >= max(1, limit):
            raise NoReplica(
                f"no engine replica has started yet, and {waiting} requests already wait for one "
                f"(max_queued_requests {limit})",
                retry_after_s=HOLD_RETRY_AFTER_S,
            )

    @contextmanager
    def _held(self) -> Iterator[None]:
        self.count += 1
        self._on_change()
        if self.count == 1:
            self._on_wanted(True)
        try:
            yield
        finally:
            self.count -= 1
            self._on_change()
            if not self.count:
                self._on_wanted(False)

    def _no_replica(self, excluded: Collection[str]) -> NoReplica:
        statuses = self._members.statuses()
        if not statuses:
            return NoReplica("no engine replica is known yet", retry_after_s=1.0)
        states = ", ".join(f"{each.name}: {each.state.value}" for each in statuses)
        tried = f"; tried {', '.join(sorted(excluded))}" if excluded else ""
        return NoReplica(f"no engine replica can take the request ({states}{tried})", retry_after_s=1.0)
