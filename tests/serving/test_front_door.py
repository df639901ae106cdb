"""Ports of a node: one gateway has them, and the next one when they are free."""

import asyncio

import pytest

from octavo_api.errors import PortInUse, StartupError
from octavo_serving.doors.front_door import FrontDoor


class Server:
    """Listeners over a set of taken ports; the gateway's own are tested in tests/router."""

    def __init__(self, taken: set[int]) -> None:
        self.taken = taken
        self.ports: set[int] = set()
        self.failure: StartupError | None = None
        self.listening, self.failed = asyncio.Event(), asyncio.Event()

    async def start(self, http_host: str, http_port: int, grpc_host: str, grpc_port: int) -> None:
        if self.failure:
            self.failed.set()
            raise self.failure
        if {http_port, grpc_port} & self.taken:
            raise PortInUse(f"port {http_port} is in use")
        self.ports = {http_port, grpc_port}
        self.taken |= self.ports
        self.listening.set()

    async def drain(self, timeout_s: float) -> bool:
        self.taken -= self.ports
        self.ports = set()
        return True

    async def stop(self) -> None:
        self.taken -= self.ports


def door(server: Server, name: str = "gateway") -> FrontDoor:
    return FrontDoor(server, "127.0.0.1", 1, 2, name=name)  # type: ignore[arg-type]


async def test_the_second_gateway_listens_when_the_first_drains() -> None:
    taken: set[int] = set()
    first, second = Server(taken), Server(taken)
    first_door, second_door = door(first), door(second)
    await first_door.open()
    await second_door.open()
    assert first.ports == {1, 2}
    assert second.ports == set()
    assert await first_door.close(1.0)
    async with asyncio.timeout(5):
        await second.listening.wait()
    second_door.check()
    assert await second_door.close(1.0)
    assert not taken


async def test_a_gateway_that_stands_by_can_be_closed() -> None:
    server = Server({1})
    waiting = door(server)
    await waiting.open()
    waiting.check()
    assert await waiting.close(1.0)
    assert server.taken == {1}


async def test_what_ends_the_wait_for_the_ports_fails_the_health_check() -> None:
    server = Server({2})
    waiting = door(server)
    await waiting.open()
    server.failure = StartupError("no such address")
    async with asyncio.timeout(5):
        await server.failed.wait()
    await asyncio.sleep(0)
    with pytest.raises(StartupError, match="no such address"):
        waiting.check()
