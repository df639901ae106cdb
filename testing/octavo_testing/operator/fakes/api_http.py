"""An API server over HTTP: list, watch, server-side apply, patches, discovery; and what a network does to them."""

import asyncio
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from aiohttp import web

from octavo_operator.model.kinds import Kind
from octavo_testing.operator.fakes.pace import Pace
from octavo_testing.operator.sweep.apiserver import ApiError, ApiServer, Document, ObjectKey
from octavo_testing.operator.sweep.requests import (
    KINDS,
    NAMESPACES,
    Call,
    discovery,
    failure,
    handle,
    labels_of,
    parse,
    selector,
)

__all__ = ["KINDS", "NAMESPACES", "Call", "FakeApiServer", "Trouble"]

Matches = Callable[[Call], bool]


@dataclass
class Trouble:
    """Happens to the next ``times`` calls that match. ``after`` means that the call has its effect first."""

    matches: Matches
    status: int = 0
    """0 resets the connection."""
    times: int = 1
    delay: float = 0.0
    """Seconds before; with ``status`` 200 that is all."""
    after: bool = False
    retry_after: str | None = None


class Change(NamedTuple):
    version: int
    type: str
    key: ObjectKey
    document: Document
    before: dict[str, str]
    """Labels that it had."""


@dataclass(eq=False)
class Stream:
    """One open watch."""

    request: web.Request
    plural: str
    queue: asyncio.Queue[Change | None] = field(default_factory=asyncio.Queue)
    silent: bool = False
    """The connection stays open, nothing comes any more: half-open."""


class FakeApiServer:
    """``url`` is where it listens; ``api`` is what it holds."""

    def __init__(
        self, *, speed: float = 20.0, seed: int = 0, bookmark_s: float = 0.2, token: str = "let-me-in"
    ) -> None:
        self.api = ApiServer(Pace(speed), random.Random(seed))
        self.api.watchers.append(self._record)
        self.api.namespaces["default"] = False
        self.calls: list[Call] = []
        self.troubles: list[Trouble] = []
        self.streams: set[Stream] = set()
        self.bookmark_s = bookmark_s
        self.token = token
        self.url = ""
        self.gone_by_status = False
        """A version that is too old is answered by 410 itself, else by an ERROR in the stream; both exist."""
        self._history: list[Change] = []
        self._compacted = 0
        self._labels: dict[ObjectKey, dict[str, str]] = {}
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> "FakeApiServer":
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        self.cut(self.streams)
        await self._runner.cleanup()

    def kubeconfig(self, folder: Path) -> Path:
        path = folder / "kubeconfig"
        named = {"name": "fake"}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{**named, "cluster": {"server": self.url}}],
            "users": [{**named, "user": {"token": self.token}}],
            "contexts": [{**named, "context": {"cluster": "fake", "user": "fake"}}],
        }
        path.write_text(yaml.safe_dump(document))
        return path

    # What a network and a busy server do

    def compact(self) -> None:
        """Everything that happened is forgotten: whoever watches from before must list again."""
        self._history.clear()
        self._compacted = int(self.api.version)

    def cut(self, streams: Iterable[Stream]) -> None:
        """Resets the connections of watches."""
        for stream in list(streams):
            if stream.request.transport is not None:
                stream.request.transport.abort()

    def silence(self) -> None:
        """The watches that are open now hear nothing any more and do not learn why."""
        for stream in self.streams:
            stream.silent = True

    def end_with_gone(self) -> None:
        """The watches that are open now are told that what they ask for is too old."""
        self.compact()
        for stream in self.streams:
            stream.queue.put_nowait(None)

    def written(self) -> list[Call]:
        return [call for call in self.calls if call.verb not in ("get", "list", "watch")]

    # Answers

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return _failure(ApiError(401, "Unauthorized", "Unauthorized"), None)
        if (found := discovery(self.api, request.path)) is not None:
            return web.json_response(found)
        call = parse(request.method, request.path, watch=request.query.get("watch") == "true")
        if call is None or call.kind.kind in self.api.kinds_missing:
            return web.Response(status=404, text="404 page not found\n")
        self.calls.append(call)
        trouble = next((one for one in self.troubles if one.times > 0 and one.matches(call)), None)
        if trouble is not None:
            trouble.times -= 1
            await asyncio.sleep(trouble.delay)
            if not trouble.after and (answer := self._trouble(trouble, request, call)) is not None:
                return answer
        try:
            if call.verb == "watch":
                return await self._watch(request, call)
            answer = web.json_response(
                handle(self.api, call, request.query, await self._body(request), request.content_type)
            )
        except ApiError as error:
            answer = _failure(error, call)
        if trouble is not None and trouble.after:
            return self._trouble(trouble, request, call) or answer
        return answer

    def _trouble(self, trouble: Trouble, request: web.Request, call: Call) -> web.StreamResponse | None:
        if trouble.status == 200:
            return None
        if trouble.status == 0:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)
        headers = {"Retry-After": trouble.retry_after} if trouble.retry_after is not None else {}
        return _failure(ApiError(trouble.status, "made to fail", "Trouble"), call, headers)

    async def _body(self, request: web.Request) -> Any:
        data = await request.read()
        return json.loads(data) if data else None

    async def _watch(self, request: web.Request, call: Call) -> web.StreamResponse:
        since = int(request.query.get("resourceVersion", "0"))
        if since < self._compacted and self.gone_by_status:
            return _failure(ApiError(410, f"too old resource version: {since}", "Expired"), call)
        stream = Stream(request, call.plural)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for change in self._history:
            if change.version > since:
                stream.queue.put_nowait(change)
        if since < self._compacted:
            stream.queue.put_nowait(None)
        self.streams.add(stream)
        try:
            async with asyncio.timeout(float(request.query.get("timeoutSeconds", "3600"))):
                await self._send(stream, response, call)
        except (TimeoutError, ConnectionResetError):
            pass
        finally:
            self.streams.discard(stream)
        return response

    async def _send(self, stream: Stream, response: web.StreamResponse, call: Call) -> None:
        kind = call.kind
        wanted = selector(stream.request.query.get("labelSelector", ""))
        while True:
            try:
                async with asyncio.timeout(self.bookmark_s):
                    change = await stream.queue.get()
            except TimeoutError:
                version = {"metadata": {"resourceVersion": self.api.version}}
                event: Document | None = {"type": "BOOKMARK", "object": {"kind": kind.kind, **version}}
            else:
                if change is None:
                    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
                    event = {"type": "ERROR", "object": gone}
                else:
                    event = _event(change, kind, call.namespace, wanted)
            if event is not None and not stream.silent:
                await response.write(json.dumps(event).encode() + b"\n")
                if event["type"] == "ERROR":
                    return

    def _record(self, type: str, document: Document) -> None:
        metadata = document["metadata"]
        key = ObjectKey(document["kind"], metadata["namespace"], metadata["name"])
        shown = json.loads(json.dumps(document))
        if type == "DELETED":
            shown["metadata"]["resourceVersion"] = self.api.next_version()
        change = Change(int(shown["metadata"]["resourceVersion"]), type, key, shown, self._labels.get(key, {}))
        self._labels[key] = labels_of(document)
        self._history.append(change)
        for stream in self.streams:
            stream.queue.put_nowait(change)


def _event(change: Change, kind: Kind, namespace: str, wanted: Callable[[dict[str, str]], bool]) -> Document | None:
    """A watch by labels sees an object come and go with its labels."""
    if change.key.kind != kind.kind or namespace not in ("", change.key.namespace):
        return None
    now, before = wanted(labels_of(change.document)), wanted(change.before)
    document = {"apiVersion": kind.api_version, "kind": kind.kind, **change.document}
    if change.type == "MODIFIED" and now != before:
        return {"type": "ADDED" if now else "DELETED", "object": document}
    return {"type": change.type, "object": document} if now else None


def _failure(error: ApiError, call: Call | None, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response(failure(error, call), status=error.code, headers=headers)
