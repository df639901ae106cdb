"""The two generating endpoints: from the request's bytes to its last event, whatever happens on the way."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.types import Receive

from octavo_api.errors import RequestError
from octavo_router.answers.call import Call
from octavo_router.answers.collected_choice import CollectedChoice
from octavo_router.answers.concurrent_calls import open_generations
from octavo_router.answers.gateway import GRACE_S, Gateway
from octavo_router.answers.generation import Generation
from octavo_router.http.body import ClientDisconnected, parse_object, read_body
from octavo_router.http.chat import ID_PREFIX as CHAT_ID_PREFIX
from octavo_router.http.chat import ChatWire, chat_calls
from octavo_router.http.completions import ID_PREFIX as COMPLETION_ID_PREFIX
from octavo_router.http.completions import CompletionWire, completion_calls
from octavo_router.http.protocol import ChatBody, CompletionBody, GenerationBody
from octavo_router.http.reply import Reply
from octavo_router.http.wire import DONE, Wire, route_headers
from octavo_text import ModelText

logger = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499
"""HTTP status of a request whose client is gone, as in nginx. No client reads it; metrics count it."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Properties of one path."""

    id_prefix: str
    body: type[GenerationBody]
    calls: Callable[[Any, Mapping[str, Any], str, str], list[Call]]
    wire: Callable[[Any, str, str, ModelText], Wire]
    prompt_param: str
    """Name of the prompt in the requests of this path."""


ENDPOINTS = {
    "/v1/chat/completions": Endpoint(CHAT_ID_PREFIX, ChatBody, chat_calls, ChatWire, "messages"),
    "/v1/completions": Endpoint(COMPLETION_ID_PREFIX, CompletionBody, completion_calls, CompletionWire, "prompt"),
}


class Generate:
    """Handler that answers one request of an endpoint through a reply."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(
        self, endpoint: Endpoint, headers: Headers, receive: Receive, reply: Reply, request_id: str, tenant: str
    ) -> None:
        """Answer the request. Raise ``ClientDisconnected``, or a ``RequestError`` if no answer has started.

        All other errors go to the client through the reply.
        """
        self._gateway.check_accepts()  # before the body is read
        async with self._gateway.time_limit():
            body = await read_body(receive, headers, self._gateway.settings.max_body_bytes)
        parsed = endpoint.body.parse(parse_object(body)).check_combinations()
        self._gateway.check_model(parsed.model)
        id = endpoint.id_prefix + request_id
        calls = endpoint.calls(parsed, self._gateway.text.sampling_defaults, id, tenant)
        wire = endpoint.wire(parsed, id, self._gateway.served_name, self._gateway.text)
        explain = headers.get("x-octavo-explain") in ("1", "true")
        answer = self._stream if parsed.stream else self._buffer
        try:
            await cancel_on_disconnect(receive, reply, answer(calls, wire, reply, explain))
        except RequestError as error:
            if error.param == "prompt":
                error.param = endpoint.prompt_param
            raise

    async def _buffer(self, calls: Sequence[Call], wire: Wire, reply: Reply, explain: bool) -> None:
        """Answer in one piece, after all choices have ended."""
        seen: set[Generation] = set()
        collected: dict[tuple[Generation, int], CollectedChoice] = {}
        async with self._gateway.time_limit(), open_generations(self._gateway, calls) as batches:
            async for generation, deltas in batches:
                seen.add(generation)
                for delta in deltas:
                    collected.setdefault((generation, delta.choice), CollectedChoice()).add(delta)
        answered = sorted(seen, key=_index)
        choices = [
            wire.choice(generation, choice, collected[generation, choice])
            for generation in answered
            for choice in range(generation.call.sampling.n)
        ]
        body = wire.envelope.body(choices, answered, explain) | wire.body_fields(answered)
        await reply.json(200, body, route_headers(answered[0]) if explain else ())

    async def _stream(self, calls: Sequence[Call], wire: Wire, reply: Reply, explain: bool) -> None:
        """Start the answer with the first output, so that a request that an engine rejects still has its status."""
        seen: set[Generation] = set()
        event, send = wire.event, reply.send
        try:
            async with self._gateway.time_limit(), open_generations(self._gateway, calls) as batches:
                async for generation, deltas in batches:
                    if not reply.status:
                        await reply.start_events(route_headers(generation) if explain else ())
                    seen.add(generation)
                    if len(deltas) == 1:
                        events = event(generation, deltas[0])
                    else:
                        events = "".join([event(generation, delta) for delta in deltas])
                    await send({"type": "http.response.body", "body": events.encode(), "more_body": True})
        except Exception as error:
            if not reply.status:
                raise
            await self._end_with_error(calls[0].request_id, error, reply)
            return
        last = wire.envelope.last_event(sorted(seen, key=_index), explain)
        await reply.end((last + DONE).encode())

    async def _end_with_error(self, id: str, error: Exception, reply: Reply) -> None:
        """Send the error to the client. If the client does not read, the server closes the connection."""
        if not isinstance(error, RequestError):
            logger.error("internal error during stream %s", id, exc_info=error, extra={"request_id": id})
            error = RequestError("internal error; see the gateway's log")
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await reply.error(error)


def _index(generation: Generation) -> int:
    return generation.call.index


Result = TypeVar("Result")


async def cancel_on_disconnect(receive: Receive, reply: Reply, work: Coroutine[Any, Any, Result]) -> Result:
    """Run ``work`` while the client is there.

    If the client goes, cancel ``work``, wait for it and raise ``ClientDisconnected``.
    """
    task = asyncio.ensure_future(work)
    disconnected = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait((task, disconnected), return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and not reply.complete:
            raise ClientDisconnected
        return await task
    finally:
        task.cancel()
        disconnected.cancel()
        await asyncio.gather(task, disconnected, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
