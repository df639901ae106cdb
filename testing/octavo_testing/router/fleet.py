"""A pool with fake replicas, and a record of the events that it observes."""

import asyncio
import contextlib
import itertools

from octavo_api.sampling import SamplingParams
from octavo_api.settings import RouterSettings
from octavo_router.fleet.engine_request import EngineRequest
from octavo_router.fleet.observer import NullObserver
from octavo_router.fleet.pool import ReplicaPool
from octavo_testing.router.fake_replica import FakeReplica
from octavo_testing.waiting import eventually_async

REQUEST_S = 600.0
"""Seconds that a request of these tests may take if it has no deadline of its own."""


class Recorder(NullObserver):
    """Observer that keeps the events."""

    def __init__(self):
        self.routes = []
        self.states = []
        self.resyncs = []
        self.gone = []
        self.predictions = []

    def decision(self, route):
        self.routes.append(route)

    def feed_state(self, replica, state):
        self.states.append((replica, state))

    def resync(self, replica, reason):
        self.resyncs.append(reason)

    def prediction(self, predicted, actual):
        self.predictions.append((predicted, actual))

    def replica_removed(self, replica):
        self.gone.append(replica)


class Fleet:
    """A pool and the fake replicas that it connects to."""

    def __init__(self):
        self.recorder = Recorder()
        self.wanted = []
        self.replicas = {}
        self.pool = None
        self._ids = itertools.count()

    def create(self, name):
        self.replicas[name] = FakeReplica(name)
        return self.replicas[name]

    async def start(self, *names, secret="", live=True, **settings):
        for name in names:
            await (self.replicas.get(name) or self.create(name)).start()
        self.pool = ReplicaPool(
            RouterSettings(**settings),
            gateway="test",
            secret=secret,
            metrics=self.recorder,
            on_wanted=self.wanted.append,
        )
        if names:
            self.pool.update_replicas(self.replicas[name].address for name in names)
        if live and names:
            await self.until(lambda: all(each.state == "live" for each in self.pool.replicas()))
        return [self.replicas[name] for name in names]

    def now(self):
        return asyncio.get_running_loop().time()

    async def until(self, condition, timeout=20.0):
        await eventually_async("the condition of the test on its fleet", condition, timeout, every_s=0.005)

    def request(self, tokens=40, *, deadline=None, priority=0, salt="", buffered=False, **sampling):
        token_ids = list(range(tokens)) if isinstance(tokens, int) else tokens
        return EngineRequest(
            request_id=f"r{next(self._ids)}",
            token_ids=token_ids,
            sampling=SamplingParams(**{"max_tokens": 8, **sampling}),
            deadline=self.now() + REQUEST_S if deadline is None else deadline,
            priority=priority,
            cache_salt=salt,
            buffered=buffered,
        )

    async def ask(self, request=None):
        """Send a request. Return the tokens of each choice, and the route."""
        stream = await self.pool.open(request or self.request())
        return await self.read(stream)

    async def read(self, stream):
        tokens = {}
        async with contextlib.aclosing(stream):
            async for outputs in stream:
                for output in outputs:
                    tokens.setdefault(output.choice, []).extend(output.token_ids)
        return tokens, stream.route

    def at_rest(self):
        """Return True if nothing is in flight, queued or reserved."""
        return (
            self.pool.inflight_requests == self.pool.queued_requests == 0
            and not self.pool._inflight
            and all(
                each.load.num_reservations == each.load.num_unreported == each.num_requests == 0
                for each in self.pool.members.all()
            )
        )

    async def close(self):
        if self.pool is not None:
            await self.pool.close()
        for replica in self.replicas.values():
            if hasattr(replica, "server"):
                await replica.die()
