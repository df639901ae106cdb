import asyncio
import threading
import time
from typing import Any

import httpx
import pytest

from octavo_serving.doors import addresses as module
from octavo_serving.doors.addresses import DEAD_AFTER_S, AddressBook, AddressPublisher, write_entry
from octavo_serving.doors.ingress import with_doors
from octavo_testing.waiting import eventually_async

MINE, THEIRS = ["http://10.0.0.1:1"], ["http://10.0.0.2:2", "grpc://10.0.0.2:3"]


class Store:
    """Ray's store as a dictionary."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.error: Exception | None = None

    def put(self, name: str, value: str) -> None:
        if self.error:
            raise self.error
        self.values[name] = value

    def entries(self) -> dict[str, str]:
        return dict(self.values)

    def delete(self, name: str) -> None:
        self.values.pop(name, None)


def test_a_gateway_without_confirmations_counts_as_dead() -> None:
    book = AddressBook()
    silent = write_entry(THEIRS, 7)
    assert book.update({"a": write_entry(MINE, 1), "b": silent}, 0.0) == []
    assert book.doors() == sorted(MINE + THEIRS)
    assert book.update({"a": write_entry(MINE, 2), "b": silent}, DEAD_AFTER_S) == []
    assert book.update({"a": write_entry(MINE, 3), "b": silent}, DEAD_AFTER_S + 1) == ["b"]
    assert book.doors() == MINE


def test_a_gateway_that_left_is_forgotten() -> None:
    book = AddressBook()
    book.update({"a": write_entry(MINE, 1)}, 0.0)
    assert book.update({}, 1.0) == []
    assert book.doors() == []


async def test_gateways_read_the_addresses_of_each_other_until_one_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.01)
    store = Store()
    one, other = AddressPublisher(store, "a", lambda: MINE), AddressPublisher(store, "b", lambda: THEIRS)
    assert one.all() == MINE
    one.start()
    other.start()
    await eventually_async("both know both", lambda: one.all() == other.all() == sorted(MINE + THEIRS))
    await other.close()
    assert set(store.values) == {"a"}
    await eventually_async("the other is forgotten", lambda: one.all() == MINE)
    await one.close()
    assert not store.values


async def test_an_entry_written_while_its_gateway_leaves_is_removed() -> None:
    puts = threading.Event()

    class Slow(Store):
        def put(self, name: str, value: str) -> None:
            puts.set()
            time.sleep(0.3)
            super().put(name, value)

    store = Slow()
    doors = AddressPublisher(store, "a", lambda: MINE)
    doors.start()
    await asyncio.to_thread(puts.wait, 5)
    await doors.close()
    await asyncio.sleep(0.5)
    assert not store.values


async def test_an_unreachable_store_is_logged_once_and_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.01)
    store = Store()
    store.error = RuntimeError("the head is gone")
    doors = AddressPublisher(store, "a", lambda: MINE)
    doors.start()
    await eventually_async("a line", lambda: "the head is gone" in caplog.text)
    await asyncio.sleep(0.1)
    assert caplog.text.count("cannot publish") == 1
    assert doors.all() == MINE
    store.error = None
    await eventually_async("an entry", lambda: store.values)
    await doors.close()


async def test_only_get_doors_is_answered_and_below_a_prefix_too() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 418, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    for prefix in ("", "/books/m"):
        transport = httpx.ASGITransport(with_doors(app, lambda: THEIRS), root_path=prefix)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            answer = await http.get(f"{prefix}/doors")
            assert (answer.status_code, answer.json()) == (200, {"doors": THEIRS})
            assert (await http.post(f"{prefix}/doors")).status_code == 418
            assert (await http.get(f"{prefix}/v1/models")).status_code == 418
