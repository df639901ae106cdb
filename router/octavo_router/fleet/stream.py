"""The seam between front ends and dispatch: a request for an engine, and the stream of what comes back."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from octavo_api.sampling import SamplingParams
from octavo_api.v1 import replica_pb2
from octavo_router.routing.route import Route


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One prompt in tokens. ``cache_salt`` already holds the tenant's; ``deadline`` is in the event loop's clock.

    Of a ``whole`` answer nothing is shown to the client before all of it is there.
    """

    request_id: str
    token_ids: list[int]
    sampling: SamplingParams
    priority: int = 0
    cache_salt: str = ""
    tenant: str = ""
    deadline: float | None = None
    whole: bool = False


class RequestStream(Protocol):
    """What comes back for one request. Always closed by its reader: that aborts in the engine what has not ended."""

    @property
    def route(self) -> Route | None:
        """Set before the first output."""

    @property
    def restarts(self) -> int:
        """How often a ``whole`` answer of which outputs had been taken was begun again: what was taken is void."""

    def __aiter__(self) -> AsyncIterator[list[replica_pb2.Output]]:
        """Yields all outputs that have arrived since the last turn; ends after every choice has ended.

        Raises a ``RequestError`` where the request failed: refused by the engine, past its deadline, replica lost.
        """

    def abort_choice(self, choice: int) -> None:
        """Ends one choice whose reader has seen enough (a stop string); nothing more of it is yielded."""

    async def aclose(self) -> None: ...


class Dispatcher(Protocol):
    """Admission, choice of a replica and the streams to all replicas."""

    async def open(self, request: EngineRequest) -> RequestStream:
        """Waits for admission and sends the request.

        Raises ``QueueFull``, ``NoReplica``, ``Draining``, ``DeadlineExceeded``, ``ContextLengthExceeded`` or
        ``CacheCapacityExceeded`` (the last two against the limits that replicas announced).
        """
