"""One answer on its way to the client, as raw ASGI messages: JSON, or a stream of events."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.types import Send

from octavo_api.errors import RequestError

Header = tuple[bytes, bytes]


def encode(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def header(name: str, value: object) -> Header:
    return name.encode("latin-1"), str(value).encode("latin-1", "replace")


def error_headers(error: RequestError) -> list[Header]:
    if error.retry_after_s is None:
        return []
    return [header("retry-after", max(1, math.ceil(error.retry_after_s)))]


class Reply:
    """One answer, sent once. ``status`` is 0 until it starts. ``complete`` is True once its last byte is handed over.

    Between ``start_events`` and ``end`` the streaming code calls ``send`` itself.
    """

    def __init__(self, send: Send, *, headers: Iterable[Header] = ()) -> None:
        self.status = 0
        self.complete = False
        self.headers = list(headers)
        self.send = send

    async def json(self, status: int, value: Mapping[str, Any], headers: Iterable[Header] = ()) -> None:
        body = encode(value)
        kind = [header("content-type", "application/json"), header("content-length", len(body))]
        await self._start(status, [*kind, *headers])
        await self.end(body)

    async def error(self, error: RequestError, headers: Iterable[Header] = ()) -> None:
        """Send the error: the whole answer before a stream has started, afterwards the stream's last event but one.

        An error event ends all choices that have not ended. No ``finish_reason`` follows, only ``[DONE]``.
        """
        if self.complete:
            return
        if not self.status:
            await self.json(error.http_status, error.openai(), [*error_headers(error), *headers])
        else:
            await self.end(b"data: " + encode(error.openai()) + b"\n\ndata: [DONE]\n\n")

    async def start_events(self, headers: Iterable[Header]) -> None:
        kind = [header("content-type", "text/event-stream; charset=utf-8"), header("cache-control", "no-cache")]
        # nginx would hold events back.
        await self._start(200, [*kind, header("x-accel-buffering", "no"), *headers])

    async def end(self, body: bytes) -> None:
        # Set first: the server reports a disconnect as soon as it has the last byte.
        self.complete = True
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    async def _start(self, status: int, headers: list[Header]) -> None:
        self.status = status
        await self.send({"type": "http.response.start", "status": status, "headers": [*self.headers, *headers]})
