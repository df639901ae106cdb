import asyncio
import threading
import time
from typing import Any

import httpx
import pytest

from octavo_serving.doors import addresses as module
from octavo_serving.doors.addresses import DEAD_AFTER_S, DoorBook, Doors, write_entry
from octavo_serving.doors.ingress import with_doors

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


def test_who_confirms_stays_and_who_does_not_is_dead() -> None:
    book = DoorBook()
    silent = write_entry(THEIRS, 7)
    assert book.hear({"a": write_entry(MINE, 1), "b": silent}, 0.0) == []
    assert book.doors() == sorted(MINE + THEIRS)
    assert book.hear({"a": write_entry(MINE, 2), "b": silent}, DEAD_AFTER_S) == []
    assert book.hear({"a": write_entry(MINE, 3), "b": silent}, DEAD_AFTER_S + 1) == ["b"]
    assert book.doors() == MINE


def test_who_left_is_not_there() -> None:
    book = DoorBook()
    book.hear({"a": write_entry(MINE, 1)}, 0.0)
    assert book.hear({}, 1.0) == []
    assert book.doors() == []


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_gateways_learn_of_each_other_and_of_those_that_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.01)
    store = Store()
    one, other = Doors(store, "a", lambda: MINE), Doors(store, "b", lambda: THEIRS)
    assert one.all() == MINE
    one.start()
    other.start()
    await until(lambda: one.all() == other.all() == sorted(MINE + THEIRS))
    await other.close()
    assert set(store.values) == {"a"}
    await until(lambda: one.all() == MINE)
    await one.close()
    assert not store.values


async def test_one_that_leaves_while_it_tells_is_not_there_afterwards() -> None:
    tells = threading.Event()

    class Slow(Store):
        def put(self, name: str, value: str) -> None:
            tells.set()
            time.sleep(0.3)
            super().put(name, value)

    store = Slow()
    doors = Doors(store, "a", lambda: MINE)
    doors.start()
    await asyncio.to_thread(tells.wait, 5)
    await doors.close()
    await asyncio.sleep(0.5)
    assert not store.values


async def test_a_store_out_of_reach_is_said_once_and_taken_up_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.01)
    store = Store()
    store.error = RuntimeError("the head is gone")
    doors = Doors(store, "a", lambda: MINE)
    doors.start()
    await until(lambda: "the head is gone" in caplog.text)
    await asyncio.sleep(0.1)
    assert caplog.text.count("cannot publish") == 1
    assert doors.all() == MINE
    store.error = None
    await until(lambda: store.values)
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
