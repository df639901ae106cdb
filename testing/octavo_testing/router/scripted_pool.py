"""A pool without engines. A test writes the outputs of each request."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo_api.errors import RequestError
from octavo_api.v1 import replica_pb2, sampling_pb2
from octavo_router.fleet.engine_request import EngineRequest
from octavo_router.fleet.replica_status import ReplicaState, ReplicaStatus
from octavo_router.routing.route import Reason, Route
from octavo_testing.router.byte_model import EOS

_FINISH = {
    "stop": sampling_pb2.FINISH_REASON_STOP,
    "length": sampling_pb2.FINISH_REASON_LENGTH,
    "abort": sampling_pb2.FINISH_REASON_ABORT,
}


@dataclass
class Script:
    """Answer to one request: batches of outputs, seconds to wait, events to wait for, errors to raise.

    The step ``"again"`` restarts the request. ``refuse`` is raised by ``open`` instead.
    """

    steps: Sequence[Any] = ()
    refuse: RequestError | None = None


class ScriptedStream:
    """Implementation of ``RequestStream`` that plays a script."""

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
    """Implementation of ``Pool`` without engines.

    ``answer`` returns the script of each request. ``opening`` is awaited before.
    """

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
    """Builder of the outputs that engines send."""

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
        """Return one output. ``logprobs=k`` gives each token, and each of ``prompt``, -0.5 and k alternatives."""
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
        """Return one batch for each piece. With ``finish="stop"`` the last batch is the end-of-text token."""
        steps = [[cls.output(piece, cached=cached, logprobs=logprobs)] for piece in pieces]
        end = [EOS] if finish == "stop" else cls.ids("!")
        return Script([*steps, [cls.output(end, finish=finish, logprobs=logprobs)]])

    Script = Script


def greet(request: EngineRequest) -> Script:
    """Answer every choice with ``Hello, world`` and an end of text."""
    choices = range(request.sampling.n)
    return Script(
        [
            [Writer.output("Hello", choice=choice, cached=2) for choice in choices],
            [Writer.output(", world", choice=choice) for choice in choices],
            [Writer.output([EOS], choice=choice, finish="stop") for choice in choices],
        ]
    )
