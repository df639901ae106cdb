"""Work queue of deployments with per-key coalescing and delays.

Each key is queued at most once, and one worker at a time processes it. A key that is added during that time is
processed again at once. A handler returns the seconds until the next time.
"""

import asyncio
import heapq
import logging
import math
from collections.abc import Awaitable, Callable

from octavo_operator.loop.backoff import Backoff
from octavo_operator.model.observed import Key

_log = logging.getLogger(__name__)

Handler = Callable[[Key], Awaitable[float]]
"""Function that reconciles a deployment. It returns the seconds until the next time, ``math.inf`` if it is gone."""


class WorkQueue:
    """Queue that runs ``handler`` for every added key. ``now`` is a monotonic clock, the event loop's by default."""

    def __init__(
        self,
        handler: Handler,
        *,
        workers: int = 4,
        limit_s: float = 300.0,
        backoff: Backoff | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._handler = handler
        self._workers = workers
        self._limit_s = limit_s
        self._backoff = backoff or Backoff()
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._due: dict[Key, float] = {}
        """Due times of the keys that no worker handles. Heap entries with another time are stale."""
        self._heap: list[tuple[float, Key]] = []
        self._running: dict[Key, float] = {}
        """Start times of the keys that workers handle."""
        self._again: dict[Key, float] = {}
        """Due times of keys that were added again while a worker handled them."""
        self._changed = asyncio.Event()

    def add(self, key: Key, delay: float = 0.0) -> None:
        """Make ``key`` due after ``delay`` seconds, or earlier if it is due earlier already."""
        self._add(key, self._now() + delay)

    def __len__(self) -> int:
        """Return the number of keys that are due or in work."""
        now = self._now()
        return sum(due <= now for due in self._due.values()) + len(self._running)

    def __contains__(self, key: Key) -> bool:
        """Return True if ``key`` is due at some time or in work."""
        return key in self._due or key in self._running

    def lag(self) -> float:
        """Return the seconds that the longest handler has run or the longest due key has waited."""
        now = self._now()
        return max([*(now - since for since in self._running.values()), *(now - due for due in self._due.values()), 0])

    async def run(self) -> None:
        """Work until cancelled; handlers that run then are cancelled too."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"worker {number}")

    def _add(self, key: Key, due: float) -> None:
        times = self._again if key in self._running else self._due
        if math.isinf(due) or times.get(key, math.inf) <= due:
            return
        times[key] = due
        if times is self._due:
            heapq.heappush(self._heap, (due, key))
            self._changed.set()

    async def _work(self) -> None:
        while True:
            key = await self._take()
            delay = 0.0  # a worker that is cancelled leaves the key to the next one
            try:
                delay = await self._handle(key)
            finally:
                del self._running[key]
                self._add(key, min(self._now() + delay, self._again.pop(key, math.inf)))

    async def _handle(self, key: Key) -> float:
        """Run the handler. An error or a hang of it is a bug; the queue retries the key after growing delays."""
        try:
            async with asyncio.timeout(self._limit_s) as limit:
                delay = await self._handler(key)
        except Exception:
            if limit.expired():
                _log.error("reconcile of %s did not end within %.0f s and was cancelled", key, self._limit_s)
            else:
                _log.exception("reconcile of %s failed with an unexpected error", key)
            return self._backoff.next(key)
        self._backoff.reset(key)
        return delay

    async def _take(self) -> Key:
        """Wait for the key that is due first."""
        while True:
            self._changed.clear()
            if (key := self._next()) is not None:
                self._running[key] = self._now()
                return key
            wait = max(self._heap[0][0] - self._now(), 0.0) if self._heap else None
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _next(self) -> Key | None:
        while self._heap and self._heap[0][0] <= self._now():
            due, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                del self._due[key]
                return key
        return None
