"""The known replicas and their states."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from octavo_api.v1 import replica_pb2


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """Address of one replica's gRPC service. Another address under the same name is another replica."""

    name: str
    host: str
    port: int

    @property
    def target(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Changes:
    removed: tuple[ReplicaAddress, ...]
    added: tuple[ReplicaAddress, ...]


def changes(known: Mapping[str, ReplicaAddress], wanted: Iterable[ReplicaAddress]) -> Changes:
    """Return the changes from ``known`` to ``wanted``. Raise ``ValueError`` if a name has two addresses."""
    by_name: dict[str, ReplicaAddress] = {}
    for address in wanted:
        if by_name.setdefault(address.name, address) != address:
            raise ValueError(
                f"replica {address.name}: got {by_name[address.name].target} and {address.target}, allowed: one address"
            )
    return Changes(
        removed=tuple(address for name, address in known.items() if by_name.get(name) != address),
        added=tuple(address for name, address in by_name.items() if known.get(name) != address),
    )


class ReplicaState(StrEnum):
    CONNECTING = "connecting"
    SYNCING = "syncing"
    """The router is connected, and the replica's cache is not yet known."""
    LIVE = "live"
    RESYNCING = "resyncing"
    """The known content of the replica's cache is in doubt. It counts half until a snapshot has come."""
    UNTRUSTED = "untrusted"
    """The replica is silent. Its load and cache count as unknown."""
    DRAINING = "draining"
    """The replica takes no new requests."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """Status for status pages and tests. ``load`` is None if unknown. ``detail`` is the reason for a missing link."""

    name: str
    host: str
    port: int
    state: ReplicaState
    routable: bool
    epoch: int
    load: replica_pb2.Load | None
    inflight_requests: int
    cached_keys: int
    resyncs: Mapping[str, int] = field(default_factory=dict)
    detail: str = ""
