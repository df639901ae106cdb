"""The interface between answers and the fleet: a request for an engine, the stream of its outputs, and the pool."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo_api.sampling import SamplingParams
from octavo_api.v1 import replica_pb2
from octavo_router.fleet.replica_status import ReplicaStatus
from octavo_router.routing.route import Route


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One prompt in tokens. ``cache_salt`` already holds the tenant's; ``deadline`` is in the event loop's clock.

    The client receives a ``buffered`` answer only after it is complete.
    """

    request_id: str
    token_ids: list[int]
    sampling: SamplingParams
    deadline: float
    priority: int = 0
    cache_salt: str = ""
    tenant: str = ""
    buffered: bool = False


class RequestStream(Protocol):
    """Outputs of one request. The reader must always close it. Closing aborts the unfinished choices in the engine."""

    @property
    def route(self) -> Route | None:
        """The route, set before the first output."""

    @property
    def restarts(self) -> int:
        """Number of restarts of a ``buffered`` answer. Outputs taken before a restart are void."""

    def __aiter__(self) -> AsyncIterator[list[replica_pb2.Output]]:
        """Yield all outputs that have arrived since the last turn. End after every choice has ended.

        Raise a ``RequestError`` if the request failed: rejected by the engine, past its deadline, or replica
        lost. An output with the finish reason ``ERROR`` is raised, never yielded.
        """

    def abort_choice(self, choice: int) -> None:
        """End one choice whose reader needs no more output (a stop string). No further output of it is yielded."""

    async def aclose(self) -> None: ...


class Pool(Protocol):
    """Admission, choice of a replica and the streams to all replicas."""

    @property
    def limits(self) -> replica_pb2.Limits | None:
        """The smallest limits that reachable replicas have announced; None if no replica is reachable."""

    @property
    def holds_requests(self) -> bool:
        """True if replicas start on demand. Then requests wait while there is no replica."""

    def replicas(self) -> Sequence[ReplicaStatus]:
        """Return the state of each replica."""

    async def open(self, request: EngineRequest) -> RequestStream:
        """Wait for admission and send the request.

        Raise ``QueueFull``, ``NoReplica``, ``Draining``, ``DeadlineExceeded``, ``ContextLengthExceeded`` or
        ``CacheCapacityExceeded``. The last two refer to the limits that replicas announced.
        """
