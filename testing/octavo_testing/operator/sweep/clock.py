"""An event loop whose time jumps to the next due event: hours pass in milliseconds, and always in the same order."""

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

EPOCH = 1_800_000_000.0


class _Jump(selectors.BaseSelector):
    """Waits for nothing: where the loop would sleep, the clock is moved on instead."""

    def __init__(self) -> None:
        self.loop: VirtualLoop | None = None
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, fileobj if isinstance(fileobj, int) else fileobj.fileno(), events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert self.loop is not None
        if timeout is None:
            raise RuntimeError("nothing will ever happen: every task waits, and no timer is set")
        self.loop.now += max(timeout, 0.0)
        return []

    def get_map(self) -> dict[Any, selectors.SelectorKey]:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """``now`` is Unix time."""

    def __init__(self) -> None:
        self.now = EPOCH
        selector = _Jump()
        super().__init__(selector)
        selector.loop = self
        self._clock_resolution = 1e-6  # a nanosecond is lost in a float of this size, and no timer would ever be due

    def time(self) -> float:
        return self.now


class Timeline:
    """The world's own timers: ``pending`` counts what is still to happen without the operator's doing."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.pending = 0

    @property
    def now(self) -> float:
        return self.loop.now

    def after(self, delay: float, action: Callable[..., None], *arguments: Any) -> None:
        self.pending += 1
        self.loop.call_later(max(delay, 0.0), self._run, action, arguments)

    def _run(self, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.pending -= 1
        action(*arguments)
