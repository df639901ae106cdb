"""A replica in the test's own process: a real gRPC server that speaks the protocol, with faults on request."""

import asyncio
import itertools
from functools import reduce
from operator import xor

import grpc

from octavo_api.blocks import low64, unpack
from octavo_api.protocol import PROTOCOL_VERSION, server_options
from octavo_api.v1 import replica_pb2, replica_pb2_grpc, sampling_pb2
from octavo_router.fleet.replica_status import ReplicaAddress

LENGTH, ERROR = sampling_pb2.FINISH_REASON_LENGTH, sampling_pb2.FINISH_REASON_ERROR
EPOCHS = itertools.count(1)


class Attached:
    """Stream of one gateway, on the side of the replica."""

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
    """Replica that answers with ``tokens`` tokens, one per step, ``step_s`` apart. ``answer`` replaces that."""

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
        self.drop_steps = 0  # Number of Steps that lose their events; outputs are never lost
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
        """End the streams as if the process were killed."""
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


async def never(gateway, submit):
    """Accept the request and send nothing."""


async def one_token(gateway, submit):
    """Send one token and no end."""
    gateway.send(outputs=[replica_pb2.Output(id=submit.id, token_ids=[7])])


async def one_token_of_each(gateway, submit):
    """Send one token of each choice and no end."""
    outputs = [replica_pb2.Output(id=submit.id, choice=choice, token_ids=[7]) for choice in range(submit.sampling.n)]
    gateway.send(outputs=outputs)
