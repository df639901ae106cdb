"""Events of the router, as the source of its metrics."""

from typing import Protocol

from octavo_api.v1 import replica_pb2
from octavo_router.fleet.replica_status import ReplicaState
from octavo_router.routing.feed import ResyncReason
from octavo_router.routing.route import Route


class Observer(Protocol):
    """Receiver of events on the event loop, at every request and every Step. Implementations only count."""

    def decision(self, route: Route) -> None:
        """Count a request that was sent to ``route.replica``, once more for each retry."""

    def select_seconds(self, seconds: float) -> None:
        """Observe the seconds that one decision took."""

    def prediction(self, predicted: int, actual: int) -> None:
        """Observe the cached prompt tokens of a request, as the router predicted and as the engine found."""

    def feed_state(self, replica: str, state: ReplicaState) -> None: ...

    def resync(self, replica: str, reason: ResyncReason) -> None: ...

    def engine_load(self, replica: str, load: replica_pb2.Load) -> None: ...

    def replica_removed(self, replica: str) -> None:
        """End the series of a replica that was removed from the registry."""

    def queue(self, depth: int) -> None:
        """Set the number of requests that wait for admission."""

    def inflight(self, number: int) -> None:
        """Set the number of requests that are admitted and not yet ended."""

    def index_size(self, keys: int, path_gaps: int) -> None: ...


class NullObserver:
    """Observer that ignores all events."""

    def decision(self, route: Route) -> None:
        pass

    def select_seconds(self, seconds: float) -> None:
        pass

    def prediction(self, predicted: int, actual: int) -> None:
        pass

    def feed_state(self, replica: str, state: ReplicaState) -> None:
        pass

    def resync(self, replica: str, reason: ResyncReason) -> None:
        pass

    def engine_load(self, replica: str, load: replica_pb2.Load) -> None:
        pass

    def replica_removed(self, replica: str) -> None:
        pass

    def queue(self, depth: int) -> None:
        pass

    def inflight(self, number: int) -> None:
        pass

    def index_size(self, keys: int, path_gaps: int) -> None:
        pass
