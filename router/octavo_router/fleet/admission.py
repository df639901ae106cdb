"""Admission of requests: which go to the engines now, which wait, and which are rejected.

At most ``max_inflight`` requests are admitted and not yet ended. Up to ``max_queued`` more wait. A lower ``priority``
goes first; within one priority the order is first come, first served.
"""

import asyncio
import heapq
import itertools
import math
from collections import deque

from octavo_api.errors import QueueFull, RequestError

RATE_SAMPLES = 64
MAX_RETRY_AFTER_S = 60.0


class Admission:
    """Admission of one event loop. ``now`` is the loop's clock."""

    def __init__(self, *, max_inflight: int, max_queued: int) -> None:
        self._max_inflight = max_inflight
        self.max_queued = max_queued
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._ended_at: deque[float] = deque(maxlen=RATE_SAMPLES)
        self.inflight = 0
        self.queued = 0

    async def acquire(self, priority: int, now: float) -> None:
        """Return once the request is admitted. Every return needs one ``release``.

        Raise ``QueueFull`` at once if too many requests wait. Cancelling the caller removes its request from
        the queue.
        """
        if self.inflight < self._max_inflight and not self.queued:
            self.inflight += 1
            return
        if self.queued >= self.max_queued:
            raise QueueFull(
                f"the gateway is full: {self.inflight} requests are running and {self.queued} waiting "
                f"(max_inflight_requests {self._max_inflight}, max_queued_requests {self.max_queued})",
                retry_after_s=self.retry_after_s(now),
            )
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._order), admitted))
        self.queued += 1
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.cancelled():
                self.queued -= 1
                self._compact()
            elif admitted.exception() is None:
                self._free_place()
            raise

    def release(self, now: float) -> None:
        """Count one admitted request as ended."""
        self._ended_at.append(now)
        self._free_place()

    def reconfigure(self, *, max_inflight: int, max_queued: int) -> None:
        self._max_inflight = max_inflight
        self.max_queued = max_queued
        self._admit()

    def reject_waiting(self, error: RequestError) -> None:
        """End all waiting requests with ``error``."""
        waiting, self._waiting = self._waiting, []
        for _, _, admitted in waiting:
            if not admitted.done():
                self.queued -= 1
                admitted.set_exception(error)

    def retry_after_s(self, now: float) -> float:
        """Predict when the queue will be empty, from the recent rate of ended requests.

        Return whole seconds, at least 1.
        """
        if len(self._ended_at) < 2 or now <= self._ended_at[0]:
            return 1.0
        rate = len(self._ended_at) / (now - self._ended_at[0])
        return min(MAX_RETRY_AFTER_S, max(1.0, math.ceil((self.queued + 1) / rate)))

    def _free_place(self) -> None:
        self.inflight -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.inflight < self._max_inflight:
            _, _, admitted = heapq.heappop(self._waiting)
            if not admitted.done():
                self.queued -= 1
                self.inflight += 1
                admitted.set_result(None)

    def _compact(self) -> None:
        """Remove cancelled waiters if they are most of the heap. Otherwise they stay in it until their admitted."""
        if len(self._waiting) > 2 * self.queued + 16:
            self._waiting = [entry for entry in self._waiting if not entry[2].done()]
            heapq.heapify(self._waiting)
