"""A gateway that speaks the replica protocol by hand, and checks each message that it receives."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from octavo_api.blocks import HashSpace, chain_hashes, pack
from octavo_api.protocol import PROTOCOL_VERSION, client_options
from octavo_api.v1 import replica_pb2, replica_pb2_grpc, sampling_pb2
from octavo_testing.engine.stepped_runner import SteppedRunner

SECRET = "a secret"
_TIMEOUT_S = 20.0


@dataclass
class Received:
    """The outputs that arrived for one request."""

    tokens: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    finished: dict[int, int] = field(default_factory=dict)
    stop_token_ids: dict[int, int] = field(default_factory=dict)
    error: replica_pb2.Error | None = None
    timing: replica_pb2.Timing | None = None
    cached_tokens: int | None = None
    logprobs: dict[int, list[sampling_pb2.PositionLogprobs]] = field(default_factory=lambda: defaultdict(list))
    prompt_logprobs: list[sampling_pb2.PositionLogprobs] = field(default_factory=list)
    choices: int = 1

    @property
    def done(self) -> bool:
        return self.error is not None or len(self.finished) == self.choices


class Gateway:
    """One stream. Checks every Step against its mirror of the replica's cache, once a snapshot has come."""

    def __init__(self, port: int, *, name: str = "gateway", secret: str = SECRET, version: int = PROTOCOL_VERSION):
        # Without an estimate of the wire, a gateway that does not read takes 64 KiB and no more.
        window = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536)]
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[*client_options(), *window])
        stub = replica_pb2_grpc.ReplicaStub(self._channel)
        self.call = stub.Attach(metadata=(("authorization", f"Bearer {secret}"),))
        self.name = name
        self.version = version
        self.hello: replica_pb2.Hello | None = None
        self.received: dict[int, Received] = {}
        self.step = replica_pb2.Step()
        self.seq = 0
        self.mirror: set[int] = set()
        self.synced = False
        self.events_lost = 0
        self.snapshots = 0
        self._paused = False
        self._awaited: list[tuple[Callable[[], object], asyncio.Future[None]]] = []
        self._reader: asyncio.Task[None] | None = None

    async def greet(self) -> None:
        greeting = replica_pb2.Greeting(version=self.version, gateway=self.name)
        await self.call.write(replica_pb2.GatewayMessage(greeting=greeting))

    async def attach(self, *, read: bool = True) -> "Gateway":
        await self.greet()
        message = await self.call.read()
        if message is grpc.aio.EOF:
            raise AssertionError(f"ended with {await self.call.code()}: {await self.call.details()}")
        assert message.WhichOneof("message") == "hello"
        self.hello = message.hello
        if read:
            self.start_reading()
        return self

    async def pause(self) -> None:
        """Stop reading after the next message, until ``start_reading``."""
        assert self._reader is not None
        self._paused = True
        await self._reader

    def start_reading(self) -> None:
        self._paused = False
        self._reader = asyncio.create_task(self._read())

    async def submit(
        self,
        request_id: int,
        token_ids: list[int],
        *,
        priority: int = 0,
        salt: str = "",
        timeout_s: float = 0.0,
        hashes: bytes | None = None,
        **sampling: Any,
    ) -> Received:
        assert self.hello is not None
        if hashes is None:
            space = HashSpace(self.hello.model_key, self.hello.kv_dtype, self.hello.block_size)
            hashes = pack(chain_hashes(space.root(salt), token_ids, space.block_size))
        received = self.received[request_id] = Received(choices=sampling.get("n", 1))
        sampling.setdefault("ignore_eos", True)
        submit = replica_pb2.Submit(
            id=request_id,
            request_id=f"request-{request_id}",
            token_ids=token_ids,
            hashes=hashes,
            sampling=sampling_pb2.SamplingParams(**sampling),
            priority=priority,
            cache_salt=salt,
            timeout_s=timeout_s,
        )
        await self.call.write(replica_pb2.GatewayMessage(submit=submit))
        return received

    async def abort(self, request_id: int, choice: int | None = None) -> None:
        target = replica_pb2.Abort.Target(id=request_id, choice=choice)
        await self.call.write(replica_pb2.GatewayMessage(abort=replica_pb2.Abort(targets=[target])))

    async def resync(self) -> None:
        """Ask for a snapshot and waits for it."""
        before = self.snapshots
        await self.call.write(replica_pb2.GatewayMessage(snapshot_request=replica_pb2.SnapshotRequest()))
        await self.until(lambda: self.snapshots > before)

    async def until(self, reached: Callable[[], object], timeout_s: float = _TIMEOUT_S) -> None:
        """Wait for a message after which ``reached`` holds; asked at each, so that none is passed over."""
        if reached():
            return
        assert self._reader is not None
        seen = asyncio.get_running_loop().create_future()
        self._awaited.append((reached, seen))
        async with asyncio.timeout(timeout_s):
            await asyncio.wait({seen, self._reader}, return_when=asyncio.FIRST_COMPLETED)
        if not seen.done():
            self._reader.result()
            assert reached(), f"the stream has ended with {await self.call.code()}"

    async def until_steps_reach(self, runner: SteppedRunner, reached: Callable[[], object]) -> None:
        """Allow one step after the other until ``reached`` holds: a message may arrive after the next step began."""
        while not reached():
            seq = self.seq
            await runner.allow()
            await self.until(lambda seq=seq: self.seq > seq)

    async def finished(self, *requests: Received, timeout_s: float = _TIMEOUT_S) -> None:
        await self.until(lambda: all(request.done for request in requests), timeout_s)

    async def ended(self) -> grpc.StatusCode:
        """Wait for the end of the stream."""
        assert self._reader is not None
        await asyncio.wait_for(asyncio.shield(self._reader), _TIMEOUT_S)
        return await self.call.code()

    def disconnect(self) -> None:
        self.call.cancel()

    async def close(self) -> None:
        if self._reader is not None:
            if self._reader.done():
                self._reader.result()
            self._reader.cancel()
        await self._channel.close()

    async def _read(self) -> None:
        try:
            while not self._paused and (message := await self.call.read()) is not grpc.aio.EOF:
                match message.WhichOneof("message"):
                    case "step":
                        self._apply_step(message.step)
                    case "snapshot":
                        self._apply_snapshot(message.snapshot)
                self._resolve_waiters()
        except grpc.aio.AioRpcError:
            pass
        except asyncio.CancelledError:
            if not self.call.cancelled():
                raise

    def _resolve_waiters(self) -> None:
        for reached, seen in self._awaited:
            if not seen.done() and reached():
                seen.set_result(None)
        self._awaited = [(reached, seen) for reached, seen in self._awaited if not seen.done()]

    def _apply_step(self, step: replica_pb2.Step) -> None:
        assert self.hello is not None
        assert step.epoch == self.hello.epoch
        assert step.seq == self.seq + 1
        self.seq = step.seq
        self.step = step
        for output in step.outputs:
            self._apply_output(output)
        if step.events_lost:
            self.events_lost += 1
            self.synced = False
        if self.synced:
            for event in step.events:
                self._apply(event)
            self._check(step.digest, step.n_blocks)

    def _apply_output(self, output: replica_pb2.Output) -> None:
        received = self.received[output.id]
        assert received.error is None, "an output after the error"
        assert output.choice not in received.finished, "an output after the last one"
        received.tokens[output.choice].extend(output.token_ids)
        received.logprobs[output.choice].extend(output.logprobs)
        received.prompt_logprobs.extend(output.prompt_logprobs)
        if output.HasField("cached_tokens"):
            received.cached_tokens = output.cached_tokens
        if output.HasField("error"):
            received.error = output.error
        if output.HasField("timing"):
            received.timing = output.timing
        if output.HasField("stop_token_id"):
            received.stop_token_ids[output.choice] = output.stop_token_id
        if output.finish_reason:
            received.finished[output.choice] = output.finish_reason

    def _apply_snapshot(self, snapshot: replica_pb2.Snapshot) -> None:
        assert snapshot.seq == self.seq
        fresh = set(snapshot.hashes)
        assert len(fresh) == len(snapshot.hashes)
        if self.synced:
            self.snapshot_before = (self.mirror, fresh)
        self.mirror = fresh
        self.synced = True
        self.snapshots += 1
        self._check(snapshot.digest, len(fresh))

    def _apply(self, event: replica_pb2.CacheEvent) -> None:
        match event.WhichOneof("event"):
            case "stored":
                if event.stored.HasField("parent"):
                    assert event.stored.parent in self.mirror, "an orphan"
                self.mirror.update(event.stored.hashes)
            case "removed":
                assert self.mirror.issuperset(event.removed.hashes)
                self.mirror.difference_update(event.removed.hashes)
            case "cleared":
                self.mirror.clear()

    def _check(self, digest: replica_pb2.Digest, num_blocks: int) -> None:
        xor, total = 0, 0
        for item in self.mirror:
            xor ^= item
            total += item
        assert (xor, total % 2**64, len(self.mirror)) == (digest.xor, digest.sum, num_blocks)
