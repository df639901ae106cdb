"""The gRPC stream to one replica: connect, keep, connect again."""

import asyncio
import logging
import random
from collections import deque
from typing import Any, Protocol

import grpc
from grpc.aio import EOF  # type: ignore[attr-defined]

from octavo_api.protocol import PROTOCOL_VERSION, client_options
from octavo_api.v1 import replica_pb2, replica_pb2_grpc
from octavo_router.fleet.replica_status import ReplicaAddress

log = logging.getLogger(__name__)

HELLO_TIMEOUT_S = 5.0
MIN_BACKOFF_S = 0.05
MAX_BACKOFF_S = 2.0

_Call = grpc.aio.StreamStreamCall[replica_pb2.GatewayMessage, replica_pb2.ReplicaMessage]


class Receiver(Protocol):
    """Receiver of a link's events. ``on_lost`` follows every ``on_hello`` at some time, and every failed attempt."""

    def on_hello(self, hello: replica_pb2.Hello) -> None: ...

    def on_step(self, step: replica_pb2.Step) -> None: ...

    def on_snapshot(self, snapshot: replica_pb2.Snapshot) -> None: ...

    def on_lost(self, detail: str) -> None: ...


class ReplicaLink:
    """Link that sends in order and without waiting. Without a stream it drops messages, because ``on_lost`` was called.

    Reading waits for the replica only, because ``receiver`` returns at once.
    """

    def __init__(self, address: ReplicaAddress, *, gateway: str, secret: str, receiver: Receiver) -> None:
        self._address = address
        self._gateway = gateway
        self._metadata = (("authorization", f"Bearer {secret}"),) if secret else ()
        self._receiver = receiver
        self._call: _Call | None = None
        self._outbox: deque[replica_pb2.GatewayMessage] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"link to {self._address.name}")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def reset(self) -> None:
        """Close the stream. The link connects again."""
        if self._call is not None:
            self._call.cancel()

    def submit(self, submit: replica_pb2.Submit) -> None:
        self._send(replica_pb2.GatewayMessage(submit=submit))

    def abort(self, request: int, choice: int | None = None) -> None:
        """Abort a request or one of its choices. Aborts that wait to be written go in one message."""
        if not self._outbox or not self._outbox[-1].HasField("abort"):
            self._send(replica_pb2.GatewayMessage(abort=replica_pb2.Abort()))
        if self._outbox:
            self._outbox[-1].abort.targets.add(id=request, choice=choice)

    def request_snapshot(self) -> None:
        self._send(replica_pb2.GatewayMessage(snapshot_request=replica_pb2.SnapshotRequest()))

    def _send(self, message: replica_pb2.GatewayMessage) -> None:
        if self._call is not None:
            self._outbox.append(message)
            self._wake.set()

    async def _run(self) -> None:
        attempts = 0
        last_logged = ""
        while True:
            connected = False
            try:
                async with grpc.aio.insecure_channel(self._address.target, options=client_options()) as channel:
                    stub = replica_pb2_grpc.ReplicaStub(channel)  # type: ignore[no-untyped-call]
                    call: _Call = stub.Attach(metadata=self._metadata)
                    hello = await self._greet(call)
                    connected = True
                    attempts = 0
                    await self._converse(call, hello)
                detail = "the replica closed the stream"
            except grpc.aio.AioRpcError as error:
                detail = f"{error.code().name}: {error.details()}"
            except asyncio.CancelledError:
                detail = "the stream was cancelled"
            except TimeoutError:
                detail = f"no hello within {HELLO_TIMEOUT_S:g} s"
            except _ProtocolError as error:
                detail = str(error)
            # After any error: gRPC raises the end of a call instead of a cancellation that comes with it.
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                self._receiver.on_lost("the link was closed")
                raise asyncio.CancelledError
            self._receiver.on_lost(detail)
            if connected or detail != last_logged:  # a failure that repeats is logged once
                log.warning("link to %s: %s", self._address.name, detail)
                last_logged = detail
            backoff = min(MAX_BACKOFF_S, MIN_BACKOFF_S * 2 ** min(attempts, 10))
            attempts += 1
            await asyncio.sleep(backoff * random.uniform(0.5, 1.5))

    async def _greet(self, call: _Call) -> replica_pb2.Hello:
        greeting = replica_pb2.Greeting(version=PROTOCOL_VERSION, gateway=self._gateway)
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            await call.write(replica_pb2.GatewayMessage(greeting=greeting))
            first = await self._read(call)
        if first is None:
            code = await call.code()
            raise _ProtocolError(f"{code.name}: {await call.details()}")
        if not first.HasField("hello"):
            raise _ProtocolError(f"the first message is {first.WhichOneof('message')}, not hello")
        if first.hello.version != PROTOCOL_VERSION:
            raise _ProtocolError(f"protocol version: got {first.hello.version}, allowed: {PROTOCOL_VERSION}")
        if not first.hello.block_size:
            raise _ProtocolError("block_size: got 0, allowed: at least 1")
        return first.hello

    async def _converse(self, call: _Call, hello: replica_pb2.Hello) -> None:
        self._call = call
        self._outbox.clear()
        self._wake.clear()
        writer = asyncio.create_task(self._write(call))
        try:
            self._receiver.on_hello(hello)
            while (message := await self._read(call)) is not None:
                match message.WhichOneof("message"):
                    case "step":
                        self._receiver.on_step(message.step)
                    case "snapshot":
                        self._receiver.on_snapshot(message.snapshot)
                    case other:
                        log.warning("%s: ignored an unexpected message: %s", self._address.name, other)
        finally:
            self._call = None
            writer.cancel()
            call.cancel()

    @staticmethod
    async def _read(call: _Call) -> replica_pb2.ReplicaMessage | None:
        message: Any = await call.read()
        return None if message is EOF else message

    async def _write(self, call: _Call) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._outbox:
                try:
                    await call.write(self._outbox.popleft())
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return


class _ProtocolError(Exception):
    """Violation of the protocol by the replica."""
