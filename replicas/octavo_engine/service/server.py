"""The engine's gRPC service: ``octavo.v1.Replica`` over one engine, for any number of gateways.

``python -m octavo_engine`` runs it as a plain process; Serve runs it inside a replica.
"""

import asyncio
import hmac
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, Self, TypeVar

import grpc

from octavo_api.errors import Draining, EngineFailure
from octavo_api.protocol import BEAT_INTERVAL_S, PROTOCOL_VERSION, server_options
from octavo_api.settings import EngineSettings
from octavo_api.v1 import replica_pb2, replica_pb2_grpc
from octavo_engine.core.config import CoreConfig
from octavo_engine.core.engine_core import EngineCore
from octavo_engine.engine import Engine, EngineOutputs, Runner
from octavo_engine.service.intake import Intake
from octavo_engine.service.listener import bind
from octavo_engine.service.messages import digest_message, event_messages, load_message, low64s
from octavo_engine.service.outbox import CacheState, Outbox
from octavo_engine.service.peer import Context, LiveRequest, Peer

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

GREETING_TIMEOUT_S = 10.0
BLOCKED_TIMEOUT_S = 20.0
"""Maximum seconds for which a gateway may accept no message before the server ends its stream.

Its pending messages would grow without end.
"""
STALLED_AFTER_S = 30.0
"""Maximum seconds without a turn of the engine before the server stops sending beats.

Gateways then count the replica as lost.
"""
STOP_TIMEOUT_S = 5.0


class Loaded(Protocol):
    """The parts of a loaded engine that the service needs (``octavo_engine.startup.loading.LoadedEngine``)."""

    @property
    def core_config(self) -> CoreConfig: ...
    @property
    def runner(self) -> Runner: ...
    @property
    def vocab_size(self) -> int: ...


class EngineServer:
    """An engine with its listener. Call all methods on the event loop that awaited ``start``."""

    def __init__(self, loaded: Loaded, *, replica: str, secret: str) -> None:
        config = loaded.core_config
        loop = asyncio.get_running_loop()
        self.replica = replica
        self.epoch = time.time_ns()
        self.port = 0
        self.failed = asyncio.Event()
        self._config = config
        self._vocab_size = loaded.vocab_size
        self._engine = Engine(
            EngineCore(config),
            loaded.runner,
            on_outputs=lambda step: _call(loop, self._on_outputs, step),
            on_failure=lambda error: _call(loop, self._on_failure, error),
        )
        self._secret = secret
        self._server = grpc.aio.server(options=server_options())
        replica_pb2_grpc.add_ReplicaServicer_to_server(_Servicer(self), self._server)  # type: ignore[no-untyped-call]
        self._peers: dict[Peer, asyncio.Task[Any]] = {}
        self._changed = asyncio.Event()
        self._draining = False
        self._state = CacheState(replica_pb2.Load(), replica_pb2.Digest(), 0)
        self._ticker: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls, loaded: Loaded, *, replica: str, host: str = "127.0.0.1", port: int = 0, secret: str = ""
    ) -> Self:
        """Start the engine's thread and listen on ``host:port``; port 0 takes a free one.

        Gateways must send ``secret`` if it is not empty. Raises ``PortInUse``, or ``StartupError`` if the server cannot
        listen on the address.
        """
        server = cls(loaded, replica=replica, secret=secret)
        server.port = bind(server._server, host, port)
        server._engine.start()
        await server._server.start()
        server._ticker = asyncio.create_task(server._tick())
        return server

    @property
    def active_requests(self) -> int:
        """Number of requests submitted and not yet ended."""
        return sum(len(peer.live) for peer in self._peers)

    def heartbeat_age_s(self) -> float:
        """Return the seconds since the engine's thread last began a turn; infinite if the engine has failed."""
        return self._engine.heartbeat_age_s()

    def load(self) -> replica_pb2.Load:
        """Return a copy of the load after the last step."""
        load = replica_pb2.Load()
        load.CopyFrom(self._state.load)
        return load

    def reconfigure(self, settings: EngineSettings) -> None:
        """Apply the settings that change live; the others need a new engine."""
        self._engine.reconfigure(settings)

    def reset_prefix_cache(self) -> None:
        """Forget every cached block that no running request holds."""
        self._engine.reset_prefix_cache()

    async def drain(self, timeout_s: float) -> bool:
        """Reject new requests with ``Draining``, and wait until the running requests have ended and all is sent.

        Returns False if ``timeout_s`` passed first. The replica continues to reject requests in both cases.
        """
        self._draining = True
        self._state.load.draining = True
        for peer in self._peers:
            peer.beat()
        try:
            async with asyncio.timeout(timeout_s):
                while not all(peer.is_quiet for peer in self._peers):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """End running requests with ``Draining``, close the streams and the listener, end the engine's thread."""
        self._draining = True
        tasks = list(self._peers.values())
        for peer in self._peers:
            peer.end_all(Draining("the replica has stopped"))
            peer.close()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_TIMEOUT_S)
        await self._server.stop(grace=1)
        if self._ticker is not None:
            self._ticker.cancel()
        if not await asyncio.to_thread(self._engine.stop, STOP_TIMEOUT_S):
            logger.warning("the engine's step has not ended within %s s of the stop", STOP_TIMEOUT_S)

    def check_secret(self, shown: str) -> bool:
        """Compare in a time that reveals nothing about the secret."""
        return not self._secret or hmac.compare_digest(shown.encode(), f"Bearer {self._secret}".encode())

    def hello(self) -> replica_pb2.Hello:
        config = self._config
        return replica_pb2.Hello(
            version=PROTOCOL_VERSION,
            replica=self.replica,
            epoch=self.epoch,
            model_key=config.model_key,
            kv_dtype=config.kv_dtype,
            block_size=config.block_size,
            stride=1,
            capacity_blocks=config.num_blocks,
            limits=replica_pb2.Limits(
                max_model_len=config.max_model_len,
                max_num_seqs=config.max_num_seqs,
                kv_cache_tokens=config.num_blocks * config.block_size,
            ),
        )

    async def serve_gateway(self, gateway: str, context: Context) -> bool:
        """Serve one stream to its end; return False if it ends because the gateway accepted no message."""
        peer = Peer(
            gateway,
            self._engine,
            Intake(self._config, self._vocab_size),
            Outbox(self.epoch, self._state),
            is_draining=lambda: self._draining,
            on_change=self._changed.set,
        )
        task = asyncio.current_task()
        assert task is not None
        self._peers[peer] = task
        logger.info("%s attached", gateway)
        try:
            await context.write(replica_pb2.ReplicaMessage(hello=self.hello()))
            peer.beat()
            await peer.serve(context)
        except asyncio.CancelledError:
            if not peer.timed_out:
                raise
            task.uncancel()
        finally:
            del self._peers[peer]
            logger.info("%s detached", gateway)
        return not peer.timed_out

    def _on_outputs(self, step: EngineOutputs) -> None:
        state = CacheState(
            load_message(step.load, step.measurements, draining=self._draining),
            digest_message(step.digest),
            step.num_cached_blocks,
        )
        self._state = state
        for output in step.outputs:
            request = output.request_id
            assert isinstance(request, LiveRequest)
            request.peer.deliver(request, output)
        events, num_hashes = event_messages(step.events)
        snapshot = low64s(step.snapshot)
        for peer in self._peers:
            peer.update(events, num_hashes, state, snapshot if peer in step.snapshot_for else None)

    def _on_failure(self, error: Exception) -> None:
        self._draining = True
        self._state.load.draining = True
        answer = EngineFailure(f"the engine has failed: {type(error).__name__}; its log has the traceback")
        for peer in self._peers:
            peer.end_all(answer)
            peer.beat()
        self.failed.set()

    async def _tick(self) -> None:
        """Send beats, and end the streams of gateways that accept no message."""
        while True:
            await asyncio.sleep(BEAT_INTERVAL_S / 4)
            now = time.monotonic()
            stalled = self._engine.heartbeat_age_s() > STALLED_AFTER_S
            for peer, task in self._peers.items():
                if peer.blocked_s(now) > BLOCKED_TIMEOUT_S:
                    logger.error(
                        "%s has accepted no message for %d s, ending its stream", peer.gateway, BLOCKED_TIMEOUT_S
                    )
                    peer.timed_out = True
                    task.cancel()
                elif now - peer.sent_at > BEAT_INTERVAL_S / 2 and not stalled:
                    peer.beat()


class _Servicer(replica_pb2_grpc.ReplicaServicer):
    """Admission of gateways that send the secret and have the same protocol version."""

    def __init__(self, server: EngineServer) -> None:
        self._server = server

    async def Attach(self, request_iterator: object, context: Context) -> None:
        metadata = dict(context.invocation_metadata() or ())
        if not self._server.check_secret(str(metadata.get("authorization", ""))):
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "authorization: the application's secret is missing or wrong"
            )
        greeting = await self._greeting(context)
        if greeting.version != PROTOCOL_VERSION:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"version: got {greeting.version}, allowed: {PROTOCOL_VERSION}; upgrade gateways and engines together",
            )
        if not await self._server.serve_gateway(greeting.gateway or context.peer(), context):
            # gRPC sends a client no status for a call whose task was cancelled, so the client would wait forever. If
            # the connection ends while the status waits behind unread messages, gRPC raises InternalError.
            with suppress(grpc.aio.InternalError):
                await context.abort(grpc.StatusCode.ABORTED, f"no message was accepted for {BLOCKED_TIMEOUT_S:g} s")

    async def _greeting(self, context: Context) -> replica_pb2.Greeting:
        message = None
        with suppress(TimeoutError):
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                message = await context.read()
        if not isinstance(message, replica_pb2.GatewayMessage) or not message.HasField("greeting"):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"the first message must be a greeting, within {GREETING_TIMEOUT_S:g} s of the call",
            )
        return message.greeting


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[_T], None], argument: _T) -> None:
    """Schedule ``function`` on the loop; do nothing if the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, argument)
