"""One replica's feed, and the engine cache that it follows."""

import random
from functools import reduce
from operator import xor

from octavo_api.v1 import replica_pb2
from octavo_router.routing.feed import Feed
from octavo_router.routing.index import DictIndex


class EngineCache:
    """Cache of an engine as its service reports it to one gateway: a tree of blocks, Steps, snapshots."""

    def __init__(self, rng, capacity=200):
        self.rng = rng
        self.capacity = capacity
        self.epoch = 0
        self.restart()

    def restart(self):
        self.epoch += 1
        self.seq = 0
        self.parent = {}
        self.events = []
        self.lost = False

    @property
    def held(self):
        return set(self.parent)

    def leaves(self):
        return sorted(self.held - set(self.parent.values()))

    def store(self, length):
        before = self.rng.choice([None, *sorted(self.held)])
        stored = replica_pb2.Stored()
        if before is not None:
            stored.parent = before
        for _ in range(min(length, self.capacity - len(self.parent))):
            key = self.rng.getrandbits(64)
            self.parent[key] = before
            before = key
            stored.hashes.append(key)
        if stored.hashes:
            self.events.append(replica_pb2.CacheEvent(stored=stored))

    def evict(self):
        leaves = self.leaves()
        if leaves:
            key = self.rng.choice(leaves)
            del self.parent[key]
            self.events.append(replica_pb2.CacheEvent(removed=replica_pb2.Removed(hashes=[key])))

    def clear(self):
        self.parent.clear()
        self.events.append(replica_pb2.CacheEvent(cleared=replica_pb2.Cleared()))

    def digest(self):
        return replica_pb2.Digest(xor=reduce(xor, self.held, 0), sum=sum(self.held) % 2**64)

    def drop_events(self):
        self.events.clear()
        self.lost = True

    def step(self):
        self.seq += 1
        step = replica_pb2.Step(
            epoch=self.epoch,
            seq=self.seq,
            events=self.events,
            digest=self.digest(),
            n_blocks=len(self.held),
            events_lost=self.lost,
        )
        self.events = []
        self.lost = False
        return step

    def snapshot(self):
        """Return a snapshot that contains the events for the next Step, as the replica's service does."""
        self.events = []
        self.lost = False
        return replica_pb2.Snapshot(epoch=self.epoch, seq=self.seq, hashes=sorted(self.held), digest=self.digest())

    def hello(self):
        return replica_pb2.Hello(epoch=self.epoch, capacity_blocks=self.capacity, stride=1)


class FeedScene:
    """A feed over an index, and the cache that it must equal."""

    def __init__(self, seed=0):
        self.engine = EngineCache(random.Random(seed))
        self.index = DictIndex(audit_every=1)
        self.reasons = []
        self.feed = Feed(self.index, jitter=lambda: 0.5, on_resync=self.reasons.append)
        self.now = 100.0

    def step(self, step=None):
        self.feed.step(step or self.engine.step(), self.now)

    def go_live(self):
        self.feed.connected(self.engine.hello(), self.now)
        assert self.feed.snapshot_due(self.now)
        self.feed.snapshot(self.engine.snapshot(), self.now)
        assert self.feed.state == "live"

    def held(self):
        """Return every key that the index shows for the replica, by lookups along each path from its root."""
        engine, shown = self.engine, set()
        for key in engine.held:
            path = [key]
            while (before := engine.parent[path[-1]]) is not None:
                path.append(before)
            path.reverse()
            hits = self.index.lookup(path)
            shown.update(path[: hits[0].depth] if hits else [])
        return shown

    def equals_truth(self):
        truth = self.engine.digest()
        digest = self.index.digest(self.feed.slot)
        same = (digest.xor, digest.sum) == (truth.xor, truth.sum)
        return same and self.index.num_held(self.feed.slot) == len(self.engine.held)
