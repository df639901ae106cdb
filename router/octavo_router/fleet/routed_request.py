"""The life of one request: its attempts at replicas, its retries, its deadline and its end."""

import asyncio
from collections.abc import AsyncIterator, Callable

from octavo_api.blocks import HashSpace
from octavo_api.errors import DeadlineExceeded, Draining, QueueFull, ReplicaLost, RequestError
from octavo_api.v1 import replica_pb2
from octavo_router.fleet.attempt import Attempt
from octavo_router.fleet.engine_request import EngineRequest
from octavo_router.fleet.placement import Placement
from octavo_router.fleet.replica import Replica
from octavo_router.routing.chain import Chain
from octavo_router.routing.route import Route

MAX_TRIES = 3


class RoutedRequest:
    """Implementation of ``engine_request.RequestStream``.

    If its replica goes away, a request restarts at another replica, unless its client has received output. After
    its reader has taken outputs, a ``buffered`` request restarts only once. This is to avoid that a request that
    kills its engine kills all engines. A replica that is full or draining is replaced once.

    The request ends when the engine's last output *arrives*, not when it is read. Then it releases its reservation
    and calls ``on_end``.
    """

    def __init__(
        self,
        request: EngineRequest,
        placement: Placement,
        *,
        on_end: "Callable[[RoutedRequest], None]",
    ) -> None:
        self.request = request
        self.route: Route | None = None
        self.restarts = 0
        self._placement = placement
        self._on_end = on_end
        self._chains: dict[HashSpace, Chain] = {}
        self._excluded: set[str] = set()
        self._tries = 0
        self._replica: Replica | None = None
        self._attempt = self._new_attempt()
        """The attempt that ``place`` sends or has sent. A retry begins with a new one."""
        self._refusal: RequestError | None = None
        self._failure: RequestError | None = None
        self._ended = False
        self._timer = asyncio.get_running_loop().call_at(request.deadline, self._expire)

    @property
    def num_output_tokens(self) -> int:
        """Number of tokens that have arrived for this answer, in all choices."""
        return self._attempt.num_output_tokens

    async def place(self) -> None:
        """Send the attempt to a replica. Raise ``RequestError`` if no replica takes it."""
        candidates = await self._placement.candidates(self.request, self._chains, self._excluded)
        if self._ended:
            return
        self._replica, self.route = self._placement.send(
            self.request, candidates, self._chains, self._attempt, is_retry=self._tries > 0
        )
        self._tries += 1

    def __aiter__(self) -> AsyncIterator[list[replica_pb2.Output]]:
        return self

    async def __anext__(self) -> list[replica_pb2.Output]:
        while True:
            if self._attempt.pending:
                return self._attempt.take()
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if self._ended:
                raise StopAsyncIteration
            if self._replica is None:
                await self._retry()
            else:
                await self._attempt.arrival()

    def abort_choice(self, choice: int) -> None:
        attempt = self._attempt
        if choice not in attempt.open:
            return
        attempt.drop_choice(choice)
        if not attempt.open:
            self._end(abort=True)
        elif self._replica is not None:
            self._replica.abort_choice(attempt.id, choice)
        attempt.wake()

    async def aclose(self) -> None:
        self._attempt.pending.clear()
        self._failure = None
        self._end(abort=True)
        self._attempt.wake()

    def fail(self, error: RequestError) -> None:
        """End the request. Its reader gets the outputs that have arrived, then ``error``."""
        if not self._ended:
            self._failure = error
            self._end(abort=True)
            self._attempt.wake()

    def _new_attempt(self) -> Attempt:
        return Attempt(self.request.sampling.n, on_start=self._attempt_started, on_end=self._attempt_ended)

    def _attempt_started(self, output: replica_pb2.Output) -> None:
        if output.HasField("cached_tokens") and self.route is not None:
            self._placement.observe_cached(self.route, output.cached_tokens)

    def _attempt_ended(self) -> None:
        """End, fail or retry the request. The retry itself waits for the reader."""
        attempt, error = self._attempt, self._attempt.error
        if error is None:
            self._end(abort=False)
        elif self._may_retry(error):
            self._leave_replica()
            if attempt.was_read:
                self.restarts += 1
            attempt.void()
        else:
            self.fail(error)

    def _may_retry(self, error: RequestError) -> bool:
        """Return True if another replica may answer the request. Keep the refusal of a full or draining replica."""
        if self._attempt.started:
            self._refusal = None
        if self._attempt.was_read and (self.restarts or not self.request.buffered):
            return False
        if isinstance(error, ReplicaLost):
            return True
        if isinstance(error, Draining | QueueFull) and self._refusal is None:
            self._refusal = error
            return True
        return False

    def _leave_replica(self) -> None:
        replica, self._replica = self._replica, None
        if replica is not None:
            replica.release(self._attempt.id, abort=False)
            self._excluded.add(replica.name)

    async def _retry(self) -> None:
        try:
            if self._tries >= MAX_TRIES:
                raise ReplicaLost(
                    f"{self._tries} replicas were lost before they answered: {', '.join(sorted(self._excluded))}"
                )
            self._attempt = self._new_attempt()
            await self.place()
        except RequestError as error:
            self.fail(self._refusal or error)

    def _expire(self) -> None:
        self.fail(DeadlineExceeded("the deadline passed before the answer was complete"))

    def _end(self, *, abort: bool) -> None:
        if self._ended:
            return
        self._ended = True
        self._timer.cancel()
        replica, self._replica = self._replica, None
        if replica is not None:
            replica.release(self._attempt.id, abort=abort)
        self._on_end(self)
