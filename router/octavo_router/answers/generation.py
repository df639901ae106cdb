"""One request that an engine answers: outputs of the engine in, text and token counts out."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol, Self

from octavo_api.errors import EngineFailure
from octavo_api.finish_reason import FinishReason
from octavo_api.v1 import replica_pb2, sampling_pb2
from octavo_router.answers.call import Call
from octavo_router.answers.choice_reader import ChoiceReader, Delta
from octavo_router.answers.request_log import EndedRequest, log_end
from octavo_router.fleet.engine_request import RequestStream
from octavo_router.routing.route import Route
from octavo_text import ModelText, StopStrings


class RequestObserver(Protocol):
    """Receiver of the events of each request's life, with their times in seconds."""

    def first_token(self, seconds: float) -> None: ...

    def next_tokens(self, seconds: float) -> None: ...

    def request_ended(self, request: EndedRequest) -> None: ...


class Generation:
    """One request that an engine answers: iterate over batches of deltas, then close."""

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
        """Prompt tokens found in the engine's cache; None until the engine has reported them."""
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
        self._void_choices: set[int] = set()
        self.finish_reasons: list[str] = []
        self._choices = _create_readers(call, prompt_token_ids, text)

    def attach(self, stream: RequestStream) -> None:
        self._stream = stream
        self._next_outputs = aiter(stream).__anext__

    def _reset_if_restarted(self) -> bool:
        """Return True if the request has restarted. Then forget the void output of the previous engine."""
        if self._stream is None or self._stream.restarts == self._restarts:
            return False
        self._restarts = self._stream.restarts
        self.cached_tokens, self.timing = None, None
        self.prompt_logprobs, self.finish_reasons = [], []
        self._choices = _create_readers(self.call, self.prompt_token_ids, self._text)
        self._void_choices = set(range(len(self._choices)))
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
        """Return the outputs since the last turn, one delta or more. Raise a ``RequestError`` on failure."""
        deltas: list[Delta] = []
        while not deltas:
            if len(self.finish_reasons) == len(self._choices):
                raise StopAsyncIteration
            try:
                outputs = await self._next_outputs()
            except StopAsyncIteration:
                raise EngineFailure("the engine's stream ended before the answer was complete") from None
            now = self._clock()
            if self._reset_if_restarted():
                pass  # neither a first token nor a pause between two
            elif self._last_output:
                self._next_tokens(now - self._last_output)
            else:
                self._observer.first_token(now - self._arrived)
            self._last_output = now
            for output in outputs:
                if output.finish_reason or self._scores_prompt or self.cached_tokens is None:
                    self._take_first_and_last_fields(output)
                choice = self._choices[output.choice]
                if not choice.finished and (delta := choice.push(output)) is not None:
                    deltas.append(delta)
                    if self._void_choices:
                        delta.restarted = delta.choice in self._void_choices
                        self._void_choices.discard(delta.choice)
                    if delta.finish_reason is not None:
                        self._finish(delta, output)
        return self, deltas

    def _take_first_and_last_fields(self, output: replica_pb2.Output) -> None:
        """Read the fields that only a first or a last output has, and the prompt's log probabilities."""
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
        """Abort the unfinished choices in the engine. May be called twice.

        With ``error`` these choices count as ended by it. Without one they count as aborted, by the client or
        by ``time_limit``.
        """
        if self._closed:
            return
        self._closed = True
        self._on_close(self)
        self._reset_if_restarted()
        reason = FinishReason.ABORT if error is None else FinishReason.ERROR
        self.finish_reasons += [reason] * (len(self._choices) - len(self.finish_reasons))
        ended = self._ended_request(error)
        self._observer.request_ended(ended)
        log_end(ended)
        if self._stream is not None:
            await self._stream.aclose()

    def _ended_request(self, error: Exception | None) -> EndedRequest:
        return EndedRequest(
            request_id=self.call.request_id,
            sampling=self.call.sampling,
            finish_reasons=self.finish_reasons,
            seconds=self._clock() - self._arrived,
            prompt_tokens=len(self.prompt_token_ids),
            cached_tokens=self.cached_tokens or 0,
            completion_tokens=self.completion_tokens,
            route=self.route,
            timing=self.timing,
            error=error,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose(error if isinstance(error, Exception) else None)


Batch = tuple[Generation, list[Delta]]


def _create_readers(call: Call, prompt_ids: list[int], text: ModelText) -> list[ChoiceReader]:
    show_stop = call.include_stop_str_in_output
    stops = StopStrings(call.stop, include=show_stop) if call.stop else None
    return [
        ChoiceReader(
            index,
            text.detokenizer(prompt_ids, skip_special_tokens=call.skip_special_tokens),
            stops.fork() if stops is not None else None,
            show_stop=show_stop,
            logprobs=call.sampling.logprobs is not None,
            min_tokens=call.sampling.min_tokens,
        )
        for index in range(call.sampling.n)
    ]
