"""Who may go on to the engines now, who waits, who is refused.

At most ``max_inflight`` requests are admitted and not yet ended; up to ``max_queued`` more wait, lower ``priority``
first and first come, first served within one.
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
    """Belongs to one event loop; ``now`` is its clock."""

    def __init__(self, *, max_inflight: int, max_queued: int) -> None:
        self._max_inflight = max_inflight
        self._max_queued = max_queued
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._ended_at: deque[float] = deque(maxlen=RATE_SAMPLES)
        self.inflight = 0
        self.queued = 0

    async def acquire(self, priority: int, now: float) -> None:
        """Returns once the request is admitted: every return needs one ``release``.

        Raises ``QueueFull`` at once where too many wait. Cancelling the caller takes it out of the queue.
        """
        if self.inflight < self._max_inflight and not self.queued:
            self.inflight += 1
            return
        if self.queued >= self._max_queued:
            raise QueueFull(
                f"the gateway is full: {self.inflight} requests are running and {self.queued} waiting "
                f"(max_inflight_requests {self._max_inflight}, max_queued_requests {self._max_queued})",
                retry_after_s=self.retry_after_s(now),
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._order), turn))
        self.queued += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self.queued -= 1
                self._compact()
            elif turn.exception() is None:
                self._leave()
            raise

    def release(self, now: float) -> None:
        """One admitted request has ended."""
        self._ended_at.append(now)
        self._leave()

    def reconfigure(self, *, max_inflight: int, max_queued: int) -> None:
        self._max_inflight = max_inflight
        self._max_queued = max_queued
        self._admit()

    def refuse_waiting(self, error: RequestError) -> None:
        """Ends all that wait with ``error``."""
        waiting, self._waiting = self._waiting, []
        for _, _, turn in waiting:
            if not turn.done():
                self.queued -= 1
                turn.set_exception(error)

    def retry_after_s(self, now: float) -> float:
        """Predicts when the queue will have drained, from how fast requests ended lately; whole seconds, at least 1."""
        if len(self._ended_at) < 2 or now <= self._ended_at[0]:
            return 1.0
        rate = len(self._ended_at) / (now - self._ended_at[0])
        return min(MAX_RETRY_AFTER_S, max(1.0, math.ceil((self.queued + 1) / rate)))

    def _leave(self) -> None:
        self.inflight -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.inflight < self._max_inflight:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                self.queued -= 1
                self.inflight += 1
                turn.set_result(None)

    def _compact(self) -> None:
        """Waiters that went away stay in the heap until their turn, but never most of it."""
        if len(self._waiting) > 2 * self.queued + 16:
            self._waiting = [entry for entry in self._waiting if not entry[2].done()]
            heapq.heapify(self._waiting)
