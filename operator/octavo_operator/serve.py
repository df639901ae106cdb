"""The one way to change what a Ray serves: GET → merge → PUT under a lock per address, never DELETE.

``ServeTransport`` is how Serve is reached: over the dashboard's REST interface here, in process under ``octavo up``.
"""

import asyncio
import json
import re
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

import aiohttp

from octavo_operator import serve_state
from octavo_operator.observed import Application, Reach, Serve
from octavo_operator.serve_errors import AuthFailed, Incompatible, Refused, ServeError, Unreachable
from octavo_operator.serve_merge import with_application, without_application

APPLICATIONS_PATH, VERSION_PATH = "/api/serve/applications/", "/api/version"
TIMEOUT_S, CONNECT_TIMEOUT_S, DOORS_TIMEOUT_S = 30.0, 5.0, 3.0
MOST_BYTES, MOST_DOORS_BYTES = 64 * 2**20, 65536
_VERSION = re.compile(r"[0-9]+\.[0-9]+[0-9A-Za-z.+-]{0,32}")


class ServeTransport(Protocol):
    """Reaches one Serve. Calls raise a ``ServeError``."""

    async def version(self) -> str:
        """Returns Ray's version."""

    async def details(self) -> Mapping[str, Any]:
        """Returns Serve's details of everything, as ``GET /api/serve/applications/`` does."""

    async def put(self, config: Mapping[str, Any]) -> None:
        """Makes ``config`` all that is declared; returns before it runs."""


class RestTransport:
    """A dashboard's REST interface. Follows no redirects and shows nobody what it answers."""

    def __init__(self, session: aiohttp.ClientSession, address: str, token: str | None) -> None:
        self._session = session
        self._address = address.rstrip("/")
        # Ray redacts what it tells to browsers; a proxy in front may take the first header for itself.
        self._headers = {"User-Agent": "octavo-operator", "Accept": "application/json"}
        if token is not None:
            bearer = f"Bearer {token}"
            self._headers |= {"Authorization": bearer, "X-Ray-Authorization": bearer}

    async def version(self) -> str:
        answer = await self._read(VERSION_PATH)
        version = answer.get("ray_version")
        if not isinstance(version, str) or not _VERSION.fullmatch(version):
            raise Unreachable(f"{self._address}: answers, but does not tell a Ray version")
        return version

    async def details(self) -> Mapping[str, Any]:
        answer = await self._read(APPLICATIONS_PATH)
        if not isinstance(answer.get("applications"), dict):
            raise Unreachable(f"{self._address}: answers, but not as Ray Serve does")
        return answer

    async def put(self, config: Mapping[str, Any]) -> None:
        await self._call("PUT", APPLICATIONS_PATH, config)

    async def _read(self, path: str) -> dict[str, Any]:
        body = await self._call("GET", path, None)
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Unreachable(f"{self._address}: answers, but not as a Ray dashboard does")
        return answer

    async def _call(self, method: str, path: str, body: Any) -> bytes:
        try:
            async with self._session.request(
                method,
                self._address + path,
                headers=self._headers,
                json=body,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S),
            ) as response:
                self._check(response.status, method)
                return await bounded(response, MOST_BYTES)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise Unreachable(f"{self._address}: {_in_words(error)}") from None

    def _check(self, status: int, method: str) -> None:
        match status:
            case 200:
                return
            case 401 | 403:
                raise AuthFailed(f"{self._address}: {status}: Ray does not accept the token, or wants one")
            case 501:
                raise Incompatible(f"{self._address}: this Ray has no Serve; install ray[serve] there")
            case 404 if method == "GET":
                raise Unreachable(f"{self._address}: 404: no Ray dashboard is there")
            case 400 | 422:
                raise Refused(f"{self._address}: {status}: Serve refuses the configuration; its log says why")
            case _ if 300 <= status < 400:
                raise Unreachable(f"{self._address}: {status}: redirects are not followed; give its own address")
            case _:
                raise Unreachable(f"{self._address}: {status}")


@dataclass(slots=True)
class _Reading:
    """Serve's details as one read for all who ask at about the same time."""

    at: float
    version: str
    details: Mapping[str, Any]


Connect = Callable[[str, str | None], ServeTransport]
"""Makes the transport to an address with a token."""


class ServeClient:
    """Reads and merges. ``wanted_version`` is Ray's, compared by major and minor where it is given.

    ``fresh_s`` is for how long one read serves every deployment on that Ray; what this client puts counts at once.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        session: aiohttp.ClientSession | None = None,
        wanted_version: str = "",
        fresh_s: float = 0.5,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._connect = connect
        self._session = session
        self._wanted_version = wanted_version
        self._fresh_s = fresh_s
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._readings: dict[tuple[str, str | None], _Reading] = {}

    @classmethod
    def over_http(cls, session: aiohttp.ClientSession, **options: Any) -> Self:
        """Talks to dashboards, and to the gateways behind Serve's proxy."""
        return cls(lambda address, token: RestTransport(session, address, token), session=session, **options)

    def transport(self, address: str, token: str | None) -> ServeTransport:
        return self._connect(address, token)

    async def read(self, address: str, token: str | None, name: str, *, doors: bool = False) -> Serve:
        """Looks for application ``name`` at ``address``; what hinders is in the result, nothing is raised.

        ``doors`` asks its gateways, through Serve's proxy, where they listen themselves.
        """
        try:
            reading = await self._reading(address, token)
        except ServeError as error:
            return Serve(address=address, reach=error.reach, message=error.message)
        found = serve_state.read_application(reading.details, name)
        application = serve_state.in_words(found) if found is not None else None
        # Of the others counts that they are there: a Serve that has them has not lost ours, somebody left it out.
        others = {other: Application(other, "") for other in reading.details.get("applications") or {} if other != name}
        proxy = serve_state.proxy_url(reading.details, urlsplit(address).hostname or "")
        seen = Serve(
            address=address,
            reach=Reach.OK,
            ray_version=reading.version,
            applications=others | ({name: application} if application else {}),
            proxy_url=proxy,
        )
        if (hindrance := self._other_version(reading.version)) is not None:
            return replace(seen, reach=Reach.INCOMPATIBLE, message=hindrance)
        if doors and proxy is not None and application is not None and application.status == "RUNNING":
            return replace(seen, doors=await self._doors(proxy, application))
        return seen

    async def put(
        self, address: str, token: str | None, application: Mapping[str, Any], options: Mapping[str, Any] | None = None
    ) -> None:
        """Deploys ``application`` beside all others; raises a ``ServeError``.

        ``options`` (``proxy_location``, ``http_options``) are Serve's, where it does not run yet.
        """
        async with self._lock(address):
            transport = self.transport(address, token)
            if (hindrance := self._other_version(await transport.version())) is not None:
                raise Incompatible(hindrance)
            body = with_application(await transport.details(), application, options)
            await self._change(address, transport, body)

    async def remove(self, address: str, token: str | None, name: str, owner: str) -> None:
        """Takes application ``name`` away where ``owner`` deployed it; raises a ``ServeError``."""
        async with self._lock(address):
            transport = self.transport(address, token)
            body = without_application(await transport.details(), name, owner)
            if body is not None:
                await self._change(address, transport, body)

    async def _change(self, address: str, transport: ServeTransport, body: Mapping[str, Any]) -> None:
        try:
            await transport.put(body)
        finally:
            for key in [key for key in self._readings if key[0] == address]:
                del self._readings[key]

    async def _reading(self, address: str, token: str | None) -> _Reading:
        """The lock lets those who wait share one read, and no read sees half of a change of ours."""
        async with self._lock(address):
            now = self._now()
            for key in [key for key, reading in self._readings.items() if now - reading.at > self._fresh_s]:
                del self._readings[key]
            if (known := self._readings.get((address, token))) is not None:
                return known
            transport = self.transport(address, token)
            version, details = await transport.version(), await transport.details()
            reading = _Reading(now, version, details)
            if self._fresh_s > 0:
                self._readings[address, token] = reading
            return reading

    def _lock(self, address: str) -> asyncio.Lock:
        if (lock := self._locks.get(address)) is None:
            lock = self._locks[address] = asyncio.Lock()
        return lock

    def _other_version(self, version: str) -> str | None:
        wanted, found = self._wanted_version.split(".")[:2], version.split(".")[:2]
        if self._wanted_version and wanted != found:
            return f"Ray {version} runs there; this version of Octavo needs Ray {'.'.join(wanted)}"
        return None

    async def _doors(self, proxy: str, application: Application) -> tuple[str, ...]:
        """Gateways that cannot be asked have no doors to tell: what is served does not depend on it."""
        if self._session is None:
            return ()
        prefix = str((application.config or {}).get("route_prefix") or "/").rstrip("/")
        try:
            async with self._session.get(
                f"{proxy}{prefix}/doors",
                headers={"User-Agent": "octavo-operator"},
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=DOORS_TIMEOUT_S),
            ) as response:
                if response.status != 200:
                    return ()
                return serve_state.read_doors(json.loads(await bounded(response, MOST_DOORS_BYTES)))
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError, Unreachable):
            return ()


async def bounded(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Reads a body of at most ``most`` bytes; raises ``Unreachable``."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(65536):
        body += chunk
        if len(body) > most:
            raise Unreachable(f"{response.url.origin()}: the answer is longer than {most} bytes")
    return bytes(body)


def _in_words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return type(error).__name__ if not isinstance(error, OSError) else (error.strerror or type(error).__name__)
