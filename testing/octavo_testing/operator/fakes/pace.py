"""The sweep's timeline on a real event loop, faster than life."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from octavo_testing.operator.sweep.clock import Timeline


class Pace(Timeline):
    """Delays are divided by ``speed``; ``now`` is real, or as fast where ``fast_clock``."""

    def __init__(self, speed: float, *, fast_clock: bool = False) -> None:
        self._speed = speed
        self._fast_clock = fast_clock
        self._began = time.time()
        self._running = asyncio.get_running_loop()
        self.pending = 0

    @property
    def now(self) -> float:
        elapsed = time.time() - self._began
        return self._began + elapsed * (self._speed if self._fast_clock else 1.0)

    def after(self, delay: float, action: Callable[..., None], *arguments: Any) -> None:
        self.pending += 1
        self._running.call_later(max(delay, 0.0) / self._speed, self._run, action, arguments)
