"""The known replicas: which exist, which take requests, and what these have in common."""

import asyncio
from collections.abc import Collection, Iterable

from octavo_api.blocks import HashSpace
from octavo_api.v1 import replica_pb2
from octavo_router.fleet.observer import Observer
from octavo_router.fleet.replica import Replica
from octavo_router.fleet.replica_status import ReplicaAddress, ReplicaStatus, changes
from octavo_router.routing.cost import Candidate
from octavo_router.routing.feed import ResyncReason
from octavo_router.routing.index import PrefixIndex
from octavo_router.routing.overlay import Overlay
from octavo_router.routing.replica_load import FleetRates

WATCH_INTERVAL_S = 0.1
SWEEP_KEYS = 5_000
"""Maximum keys of dropped replicas that each turn of the watch removes from the index."""


class Members:
    """Set of replicas. ``changed`` is set when a replica may have become routable or not.

    ``routable`` holds the replicas that take requests. ``spaces`` and ``limits`` are their hash spaces, and the
    smallest limits that they have announced. ``limits`` is None if no replica is routable.
    """

    def __init__(self, *, gateway: str, secret: str, index: PrefixIndex, overlay: Overlay, observer: Observer) -> None:
        self.changed = asyncio.Event()
        self.routable: list[Replica] = []
        self.spaces: set[HashSpace] = set()
        self.limits: replica_pb2.Limits | None = None
        self._gateway = gateway
        self._secret = secret
        self.index = index
        self._overlay = overlay
        self._observer = observer
        self._rates = FleetRates()
        self._replicas: dict[str, Replica] = {}
        self._retired: set[Replica] = set()
        self._watcher: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def __getitem__(self, name: str) -> Replica:
        return self._replicas[name]

    def all(self) -> list[Replica]:
        """Return all replicas, including removed replicas with requests."""
        return [*self._replicas.values(), *self._retired]

    def statuses(self) -> list[ReplicaStatus]:
        return [replica.status() for _, replica in sorted(self._replicas.items())]

    def candidates(self, excluded: Collection[str]) -> list[Candidate]:
        """Return the inputs of a decision among the routable replicas, in the order of their names."""
        return [
            replica.candidate
            for replica in self.routable
            if replica.candidate is not None and replica.name not in excluded
        ]

    def has_connecting(self, excluded: Collection[str]) -> bool:
        """Return True if a replica may become routable within moments."""
        return any(replica.is_connecting and replica.name not in excluded for replica in self._replicas.values())

    def update(self, wanted: Iterable[ReplicaAddress]) -> None:
        """Make ``wanted`` the set of replicas. A removed replica keeps the requests that it has."""
        known = {name: replica.address for name, replica in self._replicas.items()}
        difference = changes(known, wanted)
        for address in difference.removed:
            replica = self._replicas.pop(address.name)
            replica.retire()
            self._retired.add(replica)
        for address in difference.added:
            replica = self._replicas[address.name] = Replica(
                address,
                gateway=self._gateway,
                secret=self._secret,
                index=self.index,
                overlay=self._overlay,
                fleet=self._rates,
                observer=self._observer,
                on_change=self._refresh,
            )
            replica.start()
        self._refresh()
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch(), name="replica watch")

    async def close(self) -> None:
        """End the streams to all replicas."""
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None
        replicas = self.all()
        self._replicas.clear()
        await asyncio.gather(*(replica.close() for replica in replicas), *self._closing)
        self._refresh()

    def _refresh(self) -> None:
        self.routable = [each for _, each in sorted(self._replicas.items()) if each.candidate is not None]
        self.spaces = {each.candidate.space for each in self.routable if each.candidate is not None}
        self.limits = _smallest([each.limits for each in self.routable if each.limits is not None])
        for replica in [each for each in self._retired if not each.num_requests]:
            self._retired.remove(replica)
            task = asyncio.create_task(replica.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        self.changed.set()

    async def _watch(self) -> None:
        """Check the replicas for silence.

        Skip a turn that itself comes late, because it proves nothing about replicas.
        """
        clock = asyncio.get_running_loop().time
        last = clock()
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            now = clock()
            late, last = now - last > 5 * WATCH_INTERVAL_S, now
            if late:
                continue
            suspects = self.index.take_suspects()
            for replica in self.all():
                if not replica.retired and suspects >> replica.slot & 1:
                    replica.suspect(ResyncReason.PATH_GAP)
                replica.tick(now)
            self.index.sweep(SWEEP_KEYS)
            self._observer.index_size(self.index.num_keys, self.index.path_gaps)


def _smallest(announced: list[replica_pb2.Limits]) -> replica_pb2.Limits | None:
    if not announced:
        return None
    names = [field.name for field in replica_pb2.Limits.DESCRIPTOR.fields]
    return replica_pb2.Limits(**{name: min(getattr(each, name) for each in announced) for name in names})
