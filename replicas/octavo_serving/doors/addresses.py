"""Addresses of an application's gateways, for a Ray that allocates ports. Each gateway publishes its own to all others.

Every gateway keeps its addresses in the store of Ray's head and confirms them every few seconds. Entries without
confirmation belong to dead gateways, and the other gateways delete them.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

logger = logging.getLogger(__name__)

BEAT_S = 3.0
"""Seconds between two confirmations of a gateway's entry."""

DEAD_AFTER_S = 4 * BEAT_S
"""Seconds without a confirmation after which a gateway counts as dead."""

_CLOSE_S = 2.0
"""Maximum seconds to remove the entry when a gateway ends."""


@dataclass(frozen=True, slots=True)
class _Entry:
    text: str
    changed_at: float


class AddressBook:
    """Last entry of each gateway, with its time of arrival by the clock of this machine."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def update(self, entries: Mapping[str, str], now: float) -> list[str]:
        """Read all entries, by gateway, and return the gateways that have died."""
        self._entries = {
            name: known if (known := self._entries.get(name)) and known.text == text else _Entry(text, now)
            for name, text in entries.items()
        }
        dead = [name for name, entry in self._entries.items() if now - entry.changed_at > DEAD_AFTER_S]
        for name in dead:
            del self._entries[name]
        return dead

    def doors(self) -> list[str]:
        return sorted(door for entry in self._entries.values() for door in read_entry(entry.text))


def write_entry(doors: Iterable[str], beat: int) -> str:
    return json.dumps({"doors": list(doors), "beat": beat})


def read_entry(text: str) -> list[str]:
    return list(json.loads(text)["doors"])


class Store(Protocol):
    """A folder of ``ray_adapter.Store``. Its calls block."""

    def put(self, name: str, value: str) -> None: ...

    def entries(self) -> dict[str, str]: ...

    def delete(self, name: str) -> None: ...


class AddressPublisher:
    """Publisher of the addresses that ``mine`` returns, under ``name``, and reader of all gateways' addresses."""

    def __init__(self, store: Store, name: str, mine: Callable[[], list[str]]) -> None:
        self._store = store
        self._name = name
        self._mine = mine
        self._beat = 0
        self._book = AddressBook()
        self._failing = False
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def all(self) -> list[str]:
        """Return this gateway's addresses, and those of all gateways as they were some seconds ago."""
        return sorted({*self._book.doors(), *self._mine()})

    def start(self) -> None:
        self._task = asyncio.create_task(self._publish_until_closed(), name="publish addresses")

    async def close(self) -> None:
        """Remove this gateway's addresses from the store."""
        if self._task is None:
            return
        self._closing.set()
        try:
            async with asyncio.timeout(_CLOSE_S):
                # The thread of a put cannot be cancelled. An entry that it writes after the deletion would stay.
                await self._task
                await asyncio.to_thread(self._store.delete, self._name)
        except Exception as error:
            logger.warning("gateway %s cannot remove its addresses, which expire: %s", self._name, error)

    async def _publish_until_closed(self) -> None:
        while not self._closing.is_set():
            try:
                await self._publish()
                self._failing = False
            except Exception as error:
                if not self._failing:
                    logger.warning("gateway %s cannot publish its addresses: %s", self._name, error)
                self._failing = True
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._closing.wait()

    async def _publish(self) -> None:
        self._beat += 1
        await asyncio.to_thread(self._store.put, self._name, write_entry(self._mine(), self._beat))
        entries = await asyncio.to_thread(self._store.entries)
        for name in self._book.update(entries, time.monotonic()):
            await asyncio.to_thread(self._store.delete, name)
