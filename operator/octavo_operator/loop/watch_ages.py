"""Age of the last sign of life of each watch. It shows a lost connection to the API server.

kopf passes on events but no bookmarks. So the signs are taken in the HTTP session that kopf uses, where bytes arrive.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Self, cast

import aiohttp
from yarl import URL


class WatchAges:
    """Last signs of life of the watches. kopf's thread records them, the operator's thread reads them.

    ``now`` is a monotonic clock. Names are plurals, with the namespace if the watch is of one: ``rayclusters/prod``.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._last_signs: dict[str, float] = {}

    def record(self, name: str) -> None:
        self._last_signs[name] = self._now()

    def expect_only(self, names: Iterable[str]) -> None:
        """Expect these watches, and no others, from now on. So a watch that never answers grows old too."""
        self._last_signs = dict.fromkeys(names, self._now())

    def ages(self) -> dict[str, float]:
        """Return the seconds since the last sign of life of each watch."""
        now = self._now()
        return {name: now - last for name, last in self._last_signs.items()}


def watch_name(url: URL) -> str | None:
    """Return the name of the watch that lists or streams at ``url``, None for another request."""
    match url.path.rstrip("/").split("/")[1:]:
        case ["api", _, *rest] | ["apis", _, _, *rest] if rest:
            pass
        case _:
            return None
    match rest:
        case ["namespaces", namespace, plural]:
            return f"{plural}/{namespace}"
        case [plural]:
            return plural
        case _:
            return None


def recording_session(watches: WatchAges, **options: Any) -> aiohttp.ClientSession:
    """Return a session that takes every answer, chunk and failed try of a watch as a sign of life.

    A failed try counts too: the watch is at work, and a restart would not help while the API server is away.
    """

    class Response(aiohttp.ClientResponse):
        async def start(self, connection: Any) -> Self:
            await super().start(connection)
            if (name := watch_name(self.url)) is not None:
                watches.record(name)
                if "watch" in self.url.query:
                    self.content = cast(
                        aiohttp.StreamReader, _RecordedStream(self.content, lambda: watches.record(name))
                    )
            return self

    async def record_failure(_session: Any, _context: Any, params: aiohttp.TraceRequestExceptionParams) -> None:
        if (name := watch_name(params.url)) is not None:
            watches.record(name)

    trace = aiohttp.TraceConfig()
    trace.on_request_exception.append(record_failure)
    return aiohttp.ClientSession(response_class=Response, trace_configs=[trace], **options)


class _RecordedStream:
    """Stream that calls ``record`` for each chunk that arrives."""

    def __init__(self, content: aiohttp.StreamReader, record: Callable[[], None]) -> None:
        self._content = content
        self._record = record

    async def iter_chunked(self, n: int) -> AsyncIterator[bytes]:
        async for chunk in self._content.iter_chunked(n):
            self._record()
            yield chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)
