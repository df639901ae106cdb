"""A replica in the test's own process: a real gRPC server that speaks the protocol, and does wrong when told to."""

import asyncio
import contextlib
import itertools
from functools import reduce
from operator import xor

import grpc
import pytest

from octavo_api.blocks import low64, unpack
from octavo_api.protocol import PROTOCOL_VERSION, server_options
from octavo_api.sampling import SamplingParams
from octavo_api.settings import RouterSettings
from octavo_api.v1 import replica_pb2, replica_pb2_grpc, sampling_pb2
from octavo_router.fleet.engine_request import EngineRequest
from octavo_router.fleet.observer import NullObserver
from octavo_router.fleet.pool import ReplicaPool
from octavo_router.fleet.replica_status import ReplicaAddress

STOP, LENGTH, ABORT, ERROR = (getattr(sampling_pb2, f"FINISH_REASON_{n}") for n in ("STOP", "LENGTH", "ABORT", "ERROR"))
EPOCHS = itertools.count(1)


class Attached:
    """One gateway's stream, from the replica's side."""

    def __init__(self, replica, context):
        self.replica = replica
        self.context = context
        self.seq = 0
        self.outbox = asyncio.Queue()
        self.aborted = set()

    def send(self, **step):
        self.seq += 1
        replica = self.replica
        message = replica_pb2.Step(epoch=replica.epoch, seq=self.seq, load=replica.load, **step)
        message.n_blocks = len(replica.held)
        message.digest.xor = reduce(xor, replica.held, 0) ^ replica.lie
        message.digest.sum = sum(replica.held) % 2**64
        if replica.drop_steps:
            replica.drop_steps -= 1
            self.seq += 1
            message.seq += 1
            message.ClearField("events")
        self.outbox.put_nowait(replica_pb2.ReplicaMessage(step=message))


class FakeReplica(replica_pb2_grpc.ReplicaServicer):
    """Answers a request with ``tokens``, one a step, ``step_s`` apart; ``answer`` replaces that."""

    def __init__(self, name):
        self.name = name
        self.epoch = next(EPOCHS)
        self.version = PROTOCOL_VERSION
        self.model_key = "model"
        self.secret = ""
        self.num_refused = 0
        self.limits = replica_pb2.Limits(max_model_len=1000, kv_cache_tokens=2000, max_num_seqs=8)
        self.load = replica_pb2.Load(kv_blocks=10_000, prefill_tokens_per_s=10_000, decode_step_s=0.01)
        self.tokens = 3
        self.step_s = 0.0
        self.answer = None
        self.beats = True
        self.lie = 0
        self.drop_steps = 0  # Steps whose events are lost on the way; outputs never are
        self.snapshots = True
        self.held = set()
        self.gateways = []
        self.submits = []
        self.aborts = []
        self.num_snapshots = 0
        self.tasks = set()

    async def start(self, port=0):
        self.server = grpc.aio.server(options=server_options())
        replica_pb2_grpc.add_ReplicaServicer_to_server(self, self.server)
        self.port = self.server.add_insecure_port(f"127.0.0.1:{port}")
        await self.server.start()
        return self

    async def die(self):
        """As if killed: the streams end without a word."""
        for task in self.tasks:
            task.cancel()
        await self.server.stop(grace=None)

    @property
    def address(self):
        return ReplicaAddress(self.name, "127.0.0.1", self.port)

    def step(self, **step):
        for gateway in self.gateways:
            gateway.send(**step)

    def store(self, *hashes, parent=None):
        self.held.update(hashes)
        stored = replica_pb2.Stored(hashes=hashes)
        if parent is not None:
            stored.parent = parent
        self.step(events=[replica_pb2.CacheEvent(stored=stored)])

    async def Attach(self, requests, context):
        if self.secret and dict(context.invocation_metadata()).get("authorization") != f"Bearer {self.secret}":
            self.num_refused += 1
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "secret")
        greeting = (await context.read()).greeting
        if greeting.version != self.version:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"version: got {greeting.version}")
        hello = replica_pb2.Hello(
            version=self.version,
            replica=self.name,
            epoch=self.epoch,
            model_key=self.model_key,
            kv_dtype="float32",
            block_size=16,
            stride=1,
            capacity_blocks=10_000,
            limits=self.limits,
        )
        await context.write(replica_pb2.ReplicaMessage(hello=hello))
        gateway = Attached(self, context)
        self.gateways.append(gateway)
        tasks = [asyncio.create_task(each) for each in (self._read(gateway), self._write(gateway), self._beat(gateway))]
        self.tasks.update(tasks)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self.gateways.remove(gateway)
            for task in tasks:
                task.cancel()

    async def _read(self, gateway):
        while (message := await gateway.context.read()) is not grpc.aio.EOF:
            match message.WhichOneof("message"):
                case "submit":
                    self.submits.append(message.submit)
                    task = asyncio.create_task((self.answer or self._answer)(gateway, message.submit))
                    self.tasks.add(task)
                case "abort":
                    for each in message.abort.targets:
                        self.aborts.append((each.id, each.choice if each.HasField("choice") else None))
                        gateway.aborted.add(self.aborts[-1])
                case "snapshot_request":
                    self.num_snapshots += 1
                    if self.snapshots:
                        snapshot = replica_pb2.Snapshot(epoch=self.epoch, seq=gateway.seq, hashes=self.held)
                        gateway.outbox.put_nowait(replica_pb2.ReplicaMessage(snapshot=snapshot))

    async def _write(self, gateway):
        while True:
            await gateway.context.write(await gateway.outbox.get())

    async def _beat(self, gateway):
        while True:
            if self.beats:
                gateway.send()
            await asyncio.sleep(0.05)

    async def _answer(self, gateway, submit):
        self.hold(gateway, submit)
        for position in range(self.tokens):
            await asyncio.sleep(self.step_s)
            if (submit.id, None) in gateway.aborted:
                return
            last = position == self.tokens - 1
            gateway.send(
                outputs=[
                    replica_pb2.Output(
                        id=submit.id,
                        choice=choice,
                        token_ids=[position],
                        finish_reason=LENGTH if last else 0,
                        cached_tokens=0 if not position and not choice else None,
                    )
                    for choice in range(submit.sampling.n)
                ]
            )

    def hold(self, gateway, submit):
        keys = [low64(each) for each in unpack(submit.hashes)]
        new = [key for key in keys if key not in self.held]
        if new:
            at = keys.index(new[0])
            self.store(*new, parent=keys[at - 1] if at else None)

    def refuse(self, kind, message="no"):
        async def answer(gateway, submit):
            error = replica_pb2.Error(kind=kind, message=message)
            gateway.send(outputs=[replica_pb2.Output(id=submit.id, finish_reason=ERROR, error=error)])

        self.answer = answer


class Recorder(NullObserver):
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
    """A pool and the replicas that it dials."""

    def __init__(self):
        self.recorder = Recorder()
        self.wanted = []
        self.replicas = {}
        self.pool = None
        self._ids = itertools.count()

    def make(self, name):
        self.replicas[name] = FakeReplica(name)
        return self.replicas[name]

    async def start(self, *names, secret="", live=True, **settings):
        for name in names:
            await (self.replicas.get(name) or self.make(name)).start()
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

    async def until(self, condition, timeout=20.0):
        async with asyncio.timeout(timeout):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.005)

    def request(self, tokens=40, *, deadline=None, priority=0, salt="", buffered=False, **sampling):
        token_ids = list(range(tokens)) if isinstance(tokens, int) else tokens
        return EngineRequest(
            request_id=f"r{next(self._ids)}",
            token_ids=token_ids,
            sampling=SamplingParams(**{"max_tokens": 8, **sampling}),
            priority=priority,
            cache_salt=salt,
            deadline=deadline,
            buffered=buffered,
        )

    async def ask(self, request=None):
        """Returns the tokens of each choice, and the route."""
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


@pytest.fixture
async def fleet():
    fleet = Fleet()
    yield fleet
    if fleet.pool is not None:
        await fleet.until(fleet.at_rest)
    await fleet.close()
