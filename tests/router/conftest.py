"""A byte-level model of 260 tokens, a pool whose answers a test writes, and gateways that really listen."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from octavo_api.errors import RequestError
from octavo_api.model_source import Format, ModelFiles
from octavo_api.settings import RouterSettings
from octavo_api.v1 import replica_pb2, sampling_pb2
from octavo_router.fleet.engine_request import EngineRequest
from octavo_router.fleet.replica_status import ReplicaState, ReplicaStatus
from octavo_router.front.keys import ApiKeys
from octavo_router.front.tls import Certificate
from octavo_router.gateway_server import GatewayServer
from octavo_router.metrics import Metrics
from octavo_router.routing.route import Reason, Route
from octavo_text import ModelText

MODEL = "bytes"
EOS = 256
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|bot|>{% endif %}"
)
_FINISH = {
    "stop": sampling_pb2.FINISH_REASON_STOP,
    "length": sampling_pb2.FINISH_REASON_LENGTH,
    "abort": sampling_pb2.FINISH_REASON_ABORT,
}


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    """A folder as models have it, without weights: token b is byte b, 256 ends the text."""
    alphabet = _bytes_to_unicode()
    tokenizer = Tokenizer(models.BPE(vocab={alphabet[byte]: byte for byte in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    folder = tmp_path_factory.mktemp("byte-model")
    tokenizer.save(str(folder / "tokenizer.json"))
    documents = {
        "config.json": {"vocab_size": 260, "max_position_embeddings": 4096, "eos_token_id": EOS},
        "tokenizer_config.json": {"eos_token": "<|end|>", "chat_template": TEMPLATE},
        "generation_config.json": {"eos_token_id": EOS, "temperature": 0.5},
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document))
    return ModelFiles(folder, Format.SAFETENSORS)


def _bytes_to_unicode() -> dict[int, str]:
    """GPT-2's printable stand-ins for bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    return {byte: chr(byte) for byte in kept} | {byte: chr(256 + number) for number, byte in enumerate(others)}


@pytest.fixture(scope="session")
def text(byte_model: ModelFiles) -> ModelText:
    return ModelText.load(byte_model)


@dataclass
class Script:
    """What a pool plays for one request: batches of outputs, seconds to wait, events to wait for, errors to raise."""

    steps: Sequence[Any] = ()
    refuse: RequestError | None = None


class ScriptedStream:
    """Plays a script; keeps to the contract of ``RequestStream``."""

    def __init__(self, request: EngineRequest, steps: Iterable[Any]) -> None:
        self.request = request
        self.route = Route("replica-0", "prefix", Reason.HIT, predicted_cached_tokens=3, cost_s=0.25)
        self.restarts = 0
        self.closed = asyncio.Event()
        self.aborted: list[int] = []
        self._steps = iter(steps)

    def __aiter__(self) -> AsyncIterator[list[replica_pb2.Output]]:
        return self

    async def __anext__(self) -> list[replica_pb2.Output]:
        for step in self._steps:
            if isinstance(step, BaseException):
                raise step
            if step == "again":
                self.restarts += 1
                self.aborted.clear()
                continue
            if isinstance(step, int | float):
                await asyncio.sleep(step)
            elif isinstance(step, asyncio.Event):
                await step.wait()
            else:
                outputs = [output for output in step if output.choice not in self.aborted]
                if outputs:
                    return outputs
        raise StopAsyncIteration

    def abort_choice(self, choice: int) -> None:
        self.aborted.append(choice)

    async def aclose(self) -> None:
        self.closed.set()


@dataclass
class ScriptedPool:
    """A ``Pool`` without engines. ``answer`` makes the script of each request; ``opening`` is awaited before."""

    answer: Callable[[EngineRequest], Script]
    opening: Callable[[EngineRequest], Awaitable[None]] | None = None
    routable: bool = True
    holds_requests: bool = False
    limits: replica_pb2.Limits | None = field(default_factory=lambda: replica_pb2.Limits(max_model_len=512))
    streams: list[ScriptedStream] = field(default_factory=list)

    @property
    def requests(self) -> list[EngineRequest]:
        return [stream.request for stream in self.streams]

    @property
    def last(self) -> ScriptedStream:
        return self.streams[-1]

    def replicas(self) -> list[ReplicaStatus]:
        state = ReplicaState.LIVE if self.routable else ReplicaState.UNTRUSTED
        return [ReplicaStatus("replica-0", "127.0.0.1", 1, state, self.routable, 1, None, 0, 0)]

    async def open(self, request: EngineRequest) -> ScriptedStream:
        script = self.answer(request)
        if self.opening is not None:
            await self.opening(request)
        if script.refuse is not None:
            raise script.refuse
        self.streams.append(ScriptedStream(request, script.steps))
        return self.streams[-1]


class Writer:
    """Builds what engines send."""

    @staticmethod
    def ids(text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)

    @classmethod
    def output(
        cls,
        text: str | bytes | list[int] = "",
        *,
        choice: int = 0,
        finish: str | None = None,
        cached: int | None = None,
        logprobs: int | None = None,
        prompt: Sequence[int] = (),
        **fields: Any,
    ) -> replica_pb2.Output:
        """``logprobs=k`` gives each token -0.5 and k others; ``prompt`` are prompt tokens that get the same."""
        ids = text if isinstance(text, list) else cls.ids(text)
        output = replica_pb2.Output(choice=choice, token_ids=ids, cached_tokens=cached, **fields)
        if finish is not None:
            output.finish_reason = _FINISH[finish]
        if logprobs is not None:
            output.logprobs.extend(cls.position(token, logprobs) for token in ids)
        output.prompt_logprobs.extend(cls.position(token, logprobs or 0) for token in prompt)
        return output

    @staticmethod
    def position(token: int, top: int) -> sampling_pb2.PositionLogprobs:
        entry = sampling_pb2.TokenLogprob
        others = [entry(token_id=ord("a") + number, logprob=-0.25 - number) for number in range(top)]
        return sampling_pb2.PositionLogprobs(chosen=entry(token_id=token, logprob=-0.5), top=others)

    @classmethod
    def whole(cls, *pieces: str | bytes, finish: str = "stop", cached: int = 2, logprobs: int | None = None) -> Script:
        """One batch for each piece; the last has the end-of-text token where the answer stops by itself."""
        steps = [[cls.output(piece, cached=cached, logprobs=logprobs)] for piece in pieces]
        end = [EOS] if finish == "stop" else cls.ids("!")
        return Script([*steps, [cls.output(end, finish=finish, logprobs=logprobs)]])

    Script = Script


@pytest.fixture
def write() -> type[Writer]:
    return Writer


@pytest.fixture
def pool(write: type[Writer]) -> ScriptedPool:
    """Answers every choice with ``Hello, world`` and an end of text."""

    def answer(request: EngineRequest) -> Script:
        choices = range(request.sampling.n)
        return Script(
            [
                [write.output("Hello", choice=choice, cached=2) for choice in choices],
                [write.output(", world", choice=choice) for choice in choices],
                [write.output([EOS], choice=choice, finish="stop") for choice in choices],
            ]
        )

    return ScriptedPool(answer)


@pytest.fixture
def settings() -> RouterSettings:
    return RouterSettings(request_timeout_seconds=20, max_body_bytes=256 * 1024)


StartGateway = Callable[..., Awaitable[GatewayServer]]


@pytest_asyncio.fixture
async def start_gateway(text: ModelText, settings: RouterSettings) -> AsyncIterator[StartGateway]:
    servers: list[GatewayServer] = []

    async def start(
        pool: Any,
        *,
        keys: ApiKeys | None = None,
        certificate: Certificate | None = None,
        text: ModelText = text,
        settings: RouterSettings = settings,
        metrics: Metrics | None = None,
    ) -> GatewayServer:
        server = GatewayServer(
            text=text,
            served_name=MODEL,
            settings=settings,
            pool=pool,
            keys=keys,
            certificate=certificate,
            metrics=metrics,
        )
        await server.start("127.0.0.1", 0, "127.0.0.1", 0)
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.stop()


@pytest_asyncio.fixture
async def server(start_gateway: StartGateway, pool: ScriptedPool) -> GatewayServer:
    """A gateway over the scripted pool."""
    return await start_gateway(pool)


@pytest.fixture
def eventually() -> Callable[..., Awaitable[None]]:
    """Waits until a condition holds; fails after twenty seconds."""

    async def wait(condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    return wait


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("# who may\n\nacme  key-of-acme-1\nacme  key-of-acme-2\nzeta  key-of-zeta-1\n")
    return path
