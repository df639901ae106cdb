"""A network that swallows everything without a word: only keepalive tells."""

import asyncio

import grpc
import pytest

PROMPT = list(range(10, 30))


class Wire:
    """A TCP proxy that can be cut in the middle while both ends stay connected."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._whole = asyncio.Event()
        self._whole.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        self._whole.clear()

    def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        for source, target in ((reader, far_writer), (far_reader, writer)):
            self._tasks.add(asyncio.create_task(self._relay(source, target)))

    async def _relay(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await self._whole.wait()
                target.write(data)
        except ConnectionError:
            pass
        finally:
            await self._whole.wait()
            target.close()


@pytest.fixture
async def wire_to():
    wires = []

    async def start(replica) -> tuple[Wire, int]:
        wire = Wire(replica.port)
        wires.append(wire)
        return wire, await wire.start()

    yield start
    for wire in wires:
        wire.stop()


async def test_both_ends_notice_that_the_network_is_gone(serve, attach, wire_to):
    """Without settings of our own, gRPC takes a minute; the test's patience is 20 seconds."""
    replica = await serve(step_time_s=0.05)
    wire, port = await wire_to(replica)
    lost, other = await attach(port, name="lost"), await attach(replica, name="other")
    received = await lost.submit(1, PROMPT, max_tokens=490)
    await lost.until(lambda: received.tokens[0])
    wire.cut()
    assert await lost.ended() == grpc.StatusCode.UNAVAILABLE
    assert not received.done
    await other.until(lambda: replica.server.active_requests == 0)
    await other.until(lambda: other.step.load.num_requests_running == 0)
    assert other.step.load.generation_tokens_total < 490
