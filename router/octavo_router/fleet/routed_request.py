"""One request on its way: the outputs of its replica, and the outputs that its reader has taken."""

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

from octavo_api.blocks import HashSpace
from octavo_api.errors import DeadlineExceeded, Draining, QueueFull, ReplicaLost, RequestError
from octavo_api.v1 import replica_pb2, sampling_pb2
from octavo_router.fleet.engine_request import EngineRequest
from octavo_router.fleet.replica import Replica
from octavo_router.routing.chain import Chain
from octavo_router.routing.route import Route

MAX_TRIES = 3

_ERROR = sampling_pb2.FINISH_REASON_ERROR


class Placer(Protocol):
    """Owner of requests: it places a request that has no replica, and receives the event of its end."""

    async def place(self, request: "RoutedRequest") -> None:
        """Choose a replica and send the request there. Raise ``RequestError`` if no replica takes it."""

    def ended(self, request: "RoutedRequest") -> None:
        """Record the end of a request. Called exactly once for each request."""

    def predicted(self, request: "RoutedRequest", cached_tokens: int) -> None:
        """Record that the engine has found ``cached_tokens`` in its cache."""


class RoutedRequest:
    """Implementation of ``stream.RequestStream``.

    If its replica goes away, a request starts again at another replica, unless its client has received output.
    After its reader has taken outputs, a ``whole`` request starts again only once. This is to avoid that a request
    that kills its engine kills all engines.

    Outputs that wait for a slow reader are merged into one message for each choice. So the answer's own length
    bounds them.

    The request ends when the engine's last output *arrives*, not when it is read. Then it releases its reservation
    and its place among the requests in flight.
    """

    def __init__(self, request: EngineRequest, deadline: float, placer: Placer) -> None:
        self.request = request
        self.deadline = deadline
        self.chains: dict[HashSpace, Chain] = {}
        self.excluded: set[str] = set()
        self.tries = 0
        self.restarts = 0
        self.num_output_tokens = 0
        self.route: Route | None = None
        self._placer = placer
        self._replica: Replica | None = None
        self._id = 0
        self._open = set(range(request.sampling.n))
        self._pending: dict[int, replica_pb2.Output] = {}
        self._failure: RequestError | None = None
        self._started = False
        self._taken = False
        self._misplaced = False
        self._refusal: RequestError | None = None
        self._ended = False
        self._reader: asyncio.Future[None] | None = None
        self._timer = asyncio.get_running_loop().call_at(deadline, self._expire)

    @property
    def has_ended(self) -> bool:
        return self._ended

    @property
    def _may_move(self) -> bool:
        return not self._taken or (self.request.whole and not self.restarts)

    def sent(self, replica: Replica, identity: int, route: Route) -> None:
        """Record that the request is at ``replica`` now, under ``identity``."""
        self._replica, self._id, self.route = replica, identity, route
        self.tries += 1
        self._misplaced = False

    def __aiter__(self) -> AsyncIterator[list[replica_pb2.Output]]:
        return self

    async def __anext__(self) -> list[replica_pb2.Output]:
        while True:
            if self._pending:
                outputs = list(self._pending.values())
                self._pending = {}
                self._taken = True
                return outputs
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if self._ended:
                raise StopAsyncIteration
            if self._misplaced:
                await self._place_again()
                continue
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None

    def abort_choice(self, choice: int) -> None:
        if choice not in self._open:
            return
        self._open.discard(choice)
        self._pending.pop(choice, None)
        if not self._open:
            self._end(abort=True)
        elif self._replica is not None:
            self._replica.abort_choice(self._id, choice)
        self._wake()

    async def aclose(self) -> None:
        self._pending.clear()
        self._failure = None
        self._end(abort=True)
        self._wake()

    def fail(self, error: RequestError) -> None:
        """End the request. Its reader gets the outputs that have arrived, then ``error``."""
        if not self._ended:
            self._failure = error
            self._end(abort=True)
            self._wake()

    def deliver(self, output: replica_pb2.Output) -> None:
        if output.finish_reason == _ERROR:
            self._refused(RequestError.from_proto(output.error))
            return
        choice = output.choice
        if choice not in self._open:
            return
        if not self._started:
            self._started, self._refusal = True, None
            if self._replica is not None:
                self._replica.started(self._id)
            if output.HasField("cached_tokens"):
                self._placer.predicted(self, output.cached_tokens)
        self.num_output_tokens += len(output.token_ids)
        waiting = self._pending.get(choice)
        if waiting is None:
            self._pending[choice] = output
        else:
            waiting.MergeFrom(output)
        if output.finish_reason:
            self._open.discard(choice)
            if not self._open:
                self._end(abort=False)
        self._wake()

    def lost(self, detail: str) -> None:
        replica, self._replica = self._replica, None
        name = replica.name if replica is not None else ""
        if not self._may_move:
            self.fail(ReplicaLost(f"replica {name} went away while it was generating this answer ({detail})"))
            return
        self._misplace(name, None)

    def _refused(self, error: RequestError) -> None:
        """Place the request again or fail it.

        Another engine may take a request that this one rejects as full or draining.
        """
        elsewhere = isinstance(error, Draining | QueueFull) and self._refusal is None and self._may_move
        if not elsewhere or self._replica is None:
            self.fail(error)
            return
        replica, self._replica = self._replica, None
        replica.release(self._id, abort=False)
        self._misplace(replica.name, error)

    def _misplace(self, replica: str, refusal: RequestError | None) -> None:
        self.excluded.add(replica)
        self._refusal = refusal or self._refusal
        if self._taken:
            self.restarts += 1
            self._taken = False
        self._pending.clear()
        self._open = set(range(self.request.sampling.n))
        self._started = False
        self.num_output_tokens = 0
        self._misplaced = True
        self._wake()

    async def _place_again(self) -> None:
        try:
            if self.tries >= MAX_TRIES:
                raise ReplicaLost(f"{self.tries} replicas went away before they answered: {sorted(self.excluded)}")
            await self._placer.place(self)
        except RequestError as error:
            self.fail(self._refusal or error)

    def _expire(self) -> None:
        self.fail(DeadlineExceeded("the request's deadline has passed before the answer was complete"))

    def _end(self, *, abort: bool) -> None:
        if self._ended:
            return
        self._ended = True
        self._timer.cancel()
        replica, self._replica = self._replica, None
        if replica is not None:
            replica.release(self._id, abort=abort)
        self._placer.ended(self)

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
