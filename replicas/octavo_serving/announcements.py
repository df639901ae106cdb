"""The running replicas of each deployment as Serve last announced them, in this process.

Serve pickles request routers by value, so a router's own module globals are a private copy. This module is imported by
name. So the routers of a process and the gateway in it have the same ``REGISTRY``.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Announcement:
    """One running replica. ``metadata`` is the result of its ``record_replica_metadata`` when it became ready."""

    replica: str
    metadata: Mapping[str, Any]


Listener = Callable[[tuple[Announcement, ...]], None]


class Registry:
    """Thread-safe registry. Routers publish from their own thread and call the listeners there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, tuple[Announcement, ...]] = {}
        self._listeners: dict[str, list[Listener]] = {}

    def publish(self, deployment: str, running: tuple[Announcement, ...]) -> None:
        with self._lock:
            self._running[deployment] = running
            listeners = tuple(self._listeners.get(deployment, ()))
        for listener in listeners:
            listener(running)

    def subscribe(self, deployment: str, listener: Listener) -> None:
        """Call ``listener`` with the replicas known now, then at every change."""
        with self._lock:
            self._listeners.setdefault(deployment, []).append(listener)
            running = self._running.get(deployment)
        if running is not None:
            listener(running)

    def unsubscribe(self, deployment: str, listener: Listener) -> None:
        with self._lock:
            self._listeners.get(deployment, []).remove(listener)


REGISTRY = Registry()
