"""What the router tells of itself: the events that metrics are made of."""

from typing import Protocol

from octavo_api.v1 import replica_pb2
from octavo_router.fleet.registry import ReplicaState
from octavo_router.routing.feed import ResyncReason
from octavo_router.routing.route import Route


class Observer(Protocol):
    """Called on the event loop, at every request and every Step: implementations only count."""

    def decision(self, route: Route) -> None:
        """A request has been sent to ``route.replica``; once more for each retry."""

    def select_seconds(self, seconds: float) -> None:
        """Time that one decision took."""

    def prediction(self, predicted: int, actual: int) -> None:
        """Prompt tokens that the router believed cached, and those that the engine found."""

    def feed_state(self, replica: str, state: ReplicaState) -> None: ...

    def resync(self, replica: str, reason: ResyncReason) -> None: ...

    def engine_load(self, replica: str, load: replica_pb2.Load) -> None: ...

    def replica_gone(self, replica: str) -> None:
        """The replica was taken out of the registry: its series end."""

    def queue(self, depth: int) -> None:
        """Requests that wait for admission."""

    def inflight(self, number: int) -> None:
        """Requests admitted and not yet ended."""

    def index_size(self, keys: int, path_gaps: int) -> None: ...


class NullObserver:
    """Tells nobody."""

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

    def replica_gone(self, replica: str) -> None:
        pass

    def queue(self, depth: int) -> None:
        pass

    def inflight(self, number: int) -> None:
        pass

    def index_size(self, keys: int, path_gaps: int) -> None:
        pass
