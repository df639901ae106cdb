"""The life of one request, shared by both front ends: prompt, token ids, a stream from an engine, text."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Protocol, Self

from octavo_api.errors import (
    DeadlineExceeded,
    Draining,
    EngineFailure,
    InvalidRequest,
    ModelNotFound,
    RequestError,
)
from octavo_api.settings import RouterSettings
from octavo_api.v1 import replica_pb2, sampling_pb2
from octavo_router.answers import request_log
from octavo_router.answers.call import Call, ChatPrompt, Prompt, TextPrompt, check_token_ids
from octavo_router.answers.choice import ChoiceReader, Delta, FinishReason
from octavo_router.fleet.registry import ReplicaStatus
from octavo_router.fleet.stream import Dispatcher, EngineRequest, RequestStream
from octavo_router.routing.route import Route
from octavo_text import ModelText, StopStrings

LATE_S = 2.0
"""An answer that has not ended so long after its deadline is cut: its client does not read, or the stream hangs."""


class Pool(Dispatcher, Protocol):
    """A dispatcher that can tell what its replicas announced."""

    @property
    def limits(self) -> replica_pb2.Limits | None: ...

    @property
    def holds_requests(self) -> bool: ...

    def replicas(self) -> Sequence[ReplicaStatus]: ...


class RequestObserver(Protocol):
    """Is told of each request's life, in seconds."""

    def first_token(self, seconds: float) -> None: ...

    def next_tokens(self, seconds: float) -> None: ...

    def ended(self, generation: "Generation", seconds: float) -> None: ...


class Gateway:
    """Turns calls into generations. ``settings`` may be replaced at any time and hold for calls that start later."""

    def __init__(
        self,
        *,
        text: ModelText,
        served_name: str,
        settings: RouterSettings,
        pool: Pool,
        observer: RequestObserver,
    ) -> None:
        self.text = text
        self.served_name = served_name
        self.settings = settings
        self.draining = False
        self.created = int(time.time())
        self._pool = pool
        self._observer = observer
        self._generations: set[Generation] = set()
        self._ended = asyncio.Event()

    @property
    def active_requests(self) -> int:
        return len(self._generations)

    @property
    def ready(self) -> bool:
        """Whether a request that comes now would be taken, if only to wait for a replica that it makes come."""
        return not self.draining and (self._pool.holds_requests or self.has_replica)

    @property
    def has_replica(self) -> bool:
        return any(replica.routable for replica in self._pool.replicas())

    @property
    def max_model_len(self) -> int | None:
        """What the replicas announced, else what the model's files say, in tokens."""
        limits = self._pool.limits
        return limits.max_model_len if limits is not None else self.text.max_position_embeddings

    def check_model(self, name: str) -> None:
        if name != self.served_name:
            raise ModelNotFound(
                f"model: got {name!r}, allowed: {self.served_name!r} (the model does not exist here)", param="model"
            )

    async def drain(self, timeout_s: float) -> bool:
        """Refuses new calls and waits for those that run; returns whether they ended in time."""
        self.draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._generations:
                    self._ended.clear()
                    await self._ended.wait()
        return not self._generations

    @asynccontextmanager
    async def time_limit(self) -> AsyncIterator[None]:
        """The deadline of last resort, after the engine's and dispatch's: it also ends answers that nobody reads."""
        seconds = self.settings.request_timeout_seconds
        try:
            async with asyncio.timeout(seconds + LATE_S):
                yield
        except TimeoutError:
            raise DeadlineExceeded(f"the request did not end within {seconds} seconds") from None

    async def encode(self, prompt: Prompt) -> list[int]:
        """Returns the prompt's token ids; raises ``InvalidRequest`` where it has none or names no token."""
        if isinstance(prompt, TextPrompt):
            ids = await self.text.encode(prompt.text, add_special_tokens=prompt.add_special_tokens)
        elif isinstance(prompt, ChatPrompt):
            ids = await self.text.encode_chat(
                prompt.messages,
                add_generation_prompt=prompt.add_generation_prompt,
                template_kwargs=prompt.template_kwargs,
            )
        else:
            ids = prompt.ids
            check_token_ids("prompt", ids, self.text.vocab_size)
        if not ids:
            raise InvalidRequest.field("prompt", "", "at least one token")
        return ids

    async def start(self, call: Call) -> "Generation":
        """Sends the call to an engine. The generation must be closed, whatever happens.

        Raises a ``RequestError``: the prompt is wrong, or there is no admission.
        """
        if self.draining:
            raise Draining("this gateway is shutting down and takes no new requests", retry_after_s=1.0)
        now = asyncio.get_running_loop().time()
        timeout_s = float(self.settings.request_timeout_seconds)
        if call.timeout_s is not None:
            timeout_s = min(timeout_s, call.timeout_s)
        check_token_ids("logit_bias", list(call.sampling.logit_bias), self.text.vocab_size)
        check_token_ids("stop_token_ids", call.sampling.stop_token_ids, self.text.vocab_size)
        ids = await self.encode(call.prompt)
        request = EngineRequest(
            request_id=call.request_id,
            token_ids=ids,
            sampling=call.sampling,
            priority=call.priority,
            cache_salt=call.salt,
            tenant=call.tenant,
            deadline=now + timeout_s,
            whole=call.whole,
        )
        generation = Generation(call, ids, now, self.text, self._observer, on_close=self._closed)
        self._generations.add(generation)
        try:
            generation.attach(await self._pool.open(request))
        except Exception as error:
            await generation.aclose(error)
            raise
        except asyncio.CancelledError:
            await generation.aclose()
            raise
        return generation

    def _closed(self, generation: "Generation") -> None:
        self._generations.discard(generation)
        self._ended.set()


class Generation:
    """One request that an engine is answering: iterate over batches of deltas, then close."""

    def __init__(
        self,
        call: Call,
        prompt_token_ids: list[int],
        arrived: float,
        text: ModelText,
        observer: RequestObserver,
        *,
        on_close: "Callable[[Generation], None]",
    ) -> None:
        self.call = call
        self.prompt_token_ids = prompt_token_ids
        self.cached_tokens: int | None = None
        """Prompt tokens found in the engine's cache; None until it has said."""
        self.prompt_logprobs: list[sampling_pb2.PositionLogprobs] = []
        self.timing: replica_pb2.Timing | None = None
        self._arrived = arrived
        self._last_output = 0.0
        self._stream: RequestStream | None = None
        self._next_outputs: Callable[[], Awaitable[list[replica_pb2.Output]]]
        self._scores_prompt = call.sampling.prompt_logprobs is not None
        self._clock = asyncio.get_running_loop().time
        self._observer = observer
        self._next_tokens = observer.next_tokens
        self._on_close = on_close
        self._closed = False
        self._text = text
        self._restarts = 0
        self._anew: set[int] = set()
        self.finish_reasons: list[str] = []
        self._choices = _readers(call, prompt_token_ids, text)

    def attach(self, stream: RequestStream) -> None:
        self._stream = stream
        self._next_outputs = aiter(stream).__anext__

    def _was_begun_again(self) -> bool:
        """Forgets what the engine before had said, once it is known to be void."""
        if self._stream is None or self._stream.restarts == self._restarts:
            return False
        self._restarts = self._stream.restarts
        self.cached_tokens, self.timing = None, None
        self.prompt_logprobs, self.finish_reasons = [], []
        self._choices = _readers(self.call, self.prompt_token_ids, self._text)
        self._anew = set(range(len(self._choices)))
        return True

    @property
    def route(self) -> Route | None:
        return self._stream.route if self._stream is not None else None

    @property
    def completion_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self._choices)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> "Batch":
        """Returns what has arrived since the last turn, one delta or more; raises a ``RequestError`` on failure."""
        deltas: list[Delta] = []
        while not deltas:
            if len(self.finish_reasons) == len(self._choices):
                raise StopAsyncIteration
            try:
                outputs = await self._next_outputs()
            except StopAsyncIteration:
                raise EngineFailure("the engine's stream ended before its answer did") from None
            now = self._clock()
            if self._was_begun_again():
                pass  # neither a first token nor a pause between two
            elif self._last_output:
                self._next_tokens(now - self._last_output)
            else:
                self._observer.first_token(now - self._arrived)
            self._last_output = now
            for output in outputs:
                if output.finish_reason or self._scores_prompt or self.cached_tokens is None:
                    self._take_rare(output)
                choice = self._choices[output.choice]
                if not choice.finished and (delta := choice.take(output)) is not None:
                    deltas.append(delta)
                    if self._anew:
                        delta.anew = delta.choice in self._anew
                        self._anew.discard(delta.choice)
                    if delta.finish_reason is not None:
                        self._finish(delta, output)
        return self, deltas

    def _take_rare(self, output: replica_pb2.Output) -> None:
        """Takes what only a first or a last output has, and the prompt's log probabilities."""
        if output.finish_reason:
            if output.finish_reason == sampling_pb2.FINISH_REASON_ERROR:
                raise RequestError.from_proto(output.error)
            if output.HasField("timing"):
                self.timing = output.timing
        self.prompt_logprobs += output.prompt_logprobs
        if output.HasField("cached_tokens"):
            self.cached_tokens = output.cached_tokens

    def _finish(self, delta: Delta, output: replica_pb2.Output) -> None:
        assert delta.finish_reason is not None
        self.finish_reasons.append(delta.finish_reason)
        if not output.finish_reason and self._stream is not None:
            self._stream.abort_choice(output.choice)

    async def aclose(self, error: Exception | None = None) -> None:
        """Aborts in the engine what has not ended, which then counts as ended by ``error``, without one as aborted: by
        its client, or by ``time_limit``. May be called twice.
        """
        if self._closed:
            return
        self._closed = True
        self._on_close(self)
        self._was_begun_again()
        reason = FinishReason.ABORT if error is None else FinishReason.ERROR
        self.finish_reasons += [reason] * (len(self._choices) - len(self.finish_reasons))
        seconds = self._clock() - self._arrived
        self._observer.ended(self, seconds)
        request_log.ended(self, seconds, error)
        if self._stream is not None:
            await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose(error if isinstance(error, Exception) else None)


Batch = tuple[Generation, list[Delta]]


def _readers(call: Call, prompt_ids: list[int], text: ModelText) -> list[ChoiceReader]:
    show_stop = call.include_stop_str_in_output
    stops = StopStrings(call.stop, include=show_stop) if call.stop else None
    return [
        ChoiceReader(
            index,
            text.detokenizer(prompt_ids, skip_special_tokens=call.skip_special_tokens),
            stops.fork() if stops is not None else None,
            show_stop=show_stop,
            logprobs=call.sampling.logprobs is not None,
        )
        for index in range(call.sampling.n)
    ]
