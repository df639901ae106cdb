"""Engines that a gateway should know, by Serve's announcements.

Serve leaves a replica out of its announcements while it reconfigures it, for about a tenth of a second. Then Serve
announces it again. A replica that really ends reports that itself before Serve does: its load is ``draining``, or its
stream ends. So a gateway loses nothing if it applies Serve's omissions a little later.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

FORGET_S = 2.0
"""Seconds during which a replica may be missing from the announcements before the gateway forgets it."""

Address = TypeVar("Address")


class Membership(Generic[Address]):
    """Known addresses. It calls ``apply`` with all of them at every change, and belongs to the event loop ``loop``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        apply: Callable[[Iterable[Address]], None],
        *,
        forget_s: float = FORGET_S,
    ) -> None:
        self._loop = loop
        self._apply = apply
        self._forget_s = forget_s
        self._known: dict[str, Address] = {}
        self._leaving: dict[str, asyncio.TimerHandle] = {}

    def announce(self, running: Mapping[str, Address]) -> None:
        """Add new replicas at once. Forget a replica once it was missing for ``forget_s`` seconds."""
        for name in running.keys() & self._leaving.keys():
            self._leaving.pop(name).cancel()
        for name in self._known.keys() - running.keys() - self._leaving.keys():
            self._leaving[name] = self._loop.call_later(self._forget_s, self._forget, name)
        known = {**self._known, **running}
        if known != self._known:
            self._known = known
            self._apply(tuple(known.values()))

    def close(self) -> None:
        for timer in self._leaving.values():
            timer.cancel()
        self._leaving.clear()

    def _forget(self, name: str) -> None:
        del self._leaving[name], self._known[name]
        self._apply(tuple(self._known.values()))
