"""One gateway at the other end of its stream: its requests, its outbox, and its messages."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from octavo_api.errors import Draining, InvalidRequest, RequestError
from octavo_api.finish_reason import FinishReason
from octavo_api.v1 import replica_pb2
from octavo_engine.core.request import RequestOutput
from octavo_engine.engine import Engine
from octavo_engine.service.intake import Intake
from octavo_engine.service.outbox import CacheState, Outbox

logger = logging.getLogger(__name__)

STATE_DELAY_S = 0.02
"""Maximum seconds that news without tokens waits for more news."""

Context = grpc.aio.ServicerContext[Any, Any]


class LiveRequest:
    """One request of one gateway, from Submit to its last output.

    The core identifies a request by this object, so ids of two gateways never collide. Late outputs of a request that
    has ended here never reach another request with the same id.
    """

    __slots__ = ("finish_reasons", "id", "name", "open_choices", "peer")

    def __init__(self, peer: "Peer", submit: replica_pb2.Submit) -> None:
        self.peer = peer
        self.id: int = submit.id
        self.name: str = submit.request_id
        self.open_choices = 1
        self.finish_reasons: list[str] = []
        """Finish reasons of the choices that have ended, in that order."""

    def __repr__(self) -> str:
        return f"<request {self.name or self.id} of {self.peer.gateway}>"


class Peer:
    """The state of one gateway's stream, on the event loop.

    The peer calls ``on_change`` whenever ``is_quiet`` may have become true.
    """

    def __init__(
        self,
        gateway: str,
        engine: Engine,
        intake: Intake,
        outbox: Outbox,
        *,
        is_draining: Callable[[], bool],
        on_change: Callable[[], None],
    ) -> None:
        self.gateway = gateway
        self.sent_at = time.monotonic()
        self.timed_out = False
        self.live: dict[int, LiveRequest] = {}
        self._engine = engine
        self._intake = intake
        self._outbox = outbox
        self._is_draining = is_draining
        self._on_change = on_change
        self._wake = asyncio.Event()
        self._wake_later: asyncio.TimerHandle | None = None
        self._writing_since: float | None = None
        self._closing = False

    @property
    def is_quiet(self) -> bool:
        """True if no request is running and everything has been sent."""
        return not self.live and not self._outbox.has_outputs and self._writing_since is None

    def blocked_s(self, now: float) -> float:
        """Return the seconds for which the gateway has not accepted the message being sent to it."""
        return 0.0 if self._writing_since is None else now - self._writing_since

    async def serve(self, context: Context) -> None:
        """Read and write until either end closes the stream; then abort every request of this gateway."""
        reader = asyncio.create_task(self._read(context))
        writer = asyncio.create_task(self._write(context))
        try:
            done, _ = await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            reader.cancel()
            writer.cancel()
            self._abort_all()

    def deliver(self, request: LiveRequest, output: RequestOutput) -> None:
        """Accept one output of the core.

        An error ends the request with all its choices, and no output follows it.
        """
        if self.live.get(request.id) is not request:
            return
        if output.error is not None:
            self._finish(request, str(output.error))
        elif output.finish_reason is not None:
            request.finish_reasons.append(output.finish_reason.value)
            request.open_choices -= 1
            if request.open_choices == 0:
                self._finish(request, "/".join(request.finish_reasons))
        self._outbox.add_output(request.id, output)

    def update(
        self,
        events: Sequence[replica_pb2.CacheEvent],
        num_hashes: int,
        state: CacheState,
        snapshot: Sequence[int] | None,
    ) -> None:
        """Apply the changes of a step to the cache, and send the pending news.

        Tokens go now. News of cache and load goes a little later, together.
        """
        self._outbox.add_events(events, num_hashes)
        self._outbox.set_state(state)
        if snapshot is not None:
            self._outbox.set_snapshot(snapshot)
        if self._outbox.has_outputs:
            self._wake.set()
        elif self._wake_later is None:
            self._wake_later = asyncio.get_running_loop().call_later(STATE_DELAY_S, self.beat)

    def beat(self) -> None:
        """Send a step now, with or without news."""
        self._wake.set()

    def end_all(self, error: RequestError) -> None:
        """End every request with ``error``."""
        for request in list(self.live.values()):
            self._engine.abort(request)
            self._end(request.id, error)

    def close(self) -> None:
        """End the stream after everything has been sent."""
        self._closing = True
        self._wake.set()

    def _finish(self, request: LiveRequest, how: str) -> None:
        del self.live[request.id]
        _log_end(request, how)

    def _end(self, request_id: int, error: RequestError) -> None:
        if (request := self.live.pop(request_id, None)) is not None:
            _log_end(request, error.message)
        self._outbox.add_output(
            request_id, RequestOutput(request_id, 0, (), finish_reason=FinishReason.ERROR, error=error)
        )
        self._wake.set()

    def _abort_all(self) -> None:
        if self._wake_later is not None:
            self._wake_later.cancel()
        if self.live:
            logger.info("%s has disconnected, aborting its %d requests", self.gateway, len(self.live))
        for request in self.live.values():
            self._engine.abort(request)
            _log_end(request, "its gateway has disconnected")
        self.live.clear()
        self._on_change()

    async def _write(self, context: Context) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._wake_later is not None:
                self._wake_later.cancel()
                self._wake_later = None
            closing = self._closing
            for message in self._outbox.take():
                self._writing_since = time.monotonic()
                await context.write(message)
            self._writing_since = None
            self.sent_at = time.monotonic()
            self._on_change()
            if closing:
                return

    async def _read(self, context: Context) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
            match message.WhichOneof("message"):
                case "submit":
                    self._submit(message.submit)
                case "abort":
                    for target in message.abort.targets:
                        self._abort(target)
                case "snapshot_request":
                    self._engine.request_snapshot(self)
                case other:
                    logger.warning(
                        "ignored a message of %s: got %s, allowed: submit, abort, snapshot_request", self.gateway, other
                    )

    def _submit(self, submit: replica_pb2.Submit) -> None:
        request = LiveRequest(self, submit)
        try:
            if submit.id in self.live:
                self._engine.abort(self.live[submit.id])
                raise InvalidRequest.field("id", submit.id, "one that no running request of this stream has")
            if self._is_draining():
                raise Draining("the replica is shutting down and accepts no new requests")
            new = self._intake.read(submit, request, self._engine.clock())
        except RequestError as error:
            self._end(submit.id, error)
            return
        request.open_choices = new.sampling.n
        self.live[submit.id] = request
        logger.info(
            "request of %s: %d prompt tokens, priority %d",
            self.gateway,
            len(submit.token_ids),
            submit.priority,
            extra={"request_id": request.name},
        )
        self._engine.submit(new)

    def _abort(self, target: replica_pb2.Abort.Target) -> None:
        request = self.live.get(target.id)
        if request is not None:
            self._engine.abort(request, target.choice if target.HasField("choice") else None)


def _log_end(request: LiveRequest, how: str) -> None:
    logger.info("request ended: %s", how, extra={"request_id": request.name})
