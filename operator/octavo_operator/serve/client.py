"""The only way to change the applications of a Ray: GET → merge → PUT under a lock per address, never DELETE.

``ServeTransport`` reaches Serve: over the dashboard's REST interface here, in process under ``octavo up``.
"""

import asyncio
import json
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

import aiohttp

from octavo_operator.model.observed import Application, Reach, Serve
from octavo_operator.serve import details as serve_details
from octavo_operator.serve.errors import Incompatible, ServeError, Unreachable
from octavo_operator.serve.import_check import Importable
from octavo_operator.serve.jobs import RestJobs
from octavo_operator.serve.merge import with_application, without_application
from octavo_operator.serve.rest import Dashboard, RestTransport, bounded

DOORS_TIMEOUT_S, MOST_DOORS_BYTES = 3.0, 65536


class ServeTransport(Protocol):
    """Connection to one Serve. Calls raise a ``ServeError``."""

    async def version(self) -> str:
        """Return Ray's version."""

    async def details(self) -> Mapping[str, Any]:
        """Return Serve's details of everything, as ``GET /api/serve/applications/`` does."""

    async def put(self, config: Mapping[str, Any]) -> None:
        """Make ``config`` all that is declared; return before it runs."""


@dataclass(slots=True)
class _Reading:
    """Serve's details from one read, shared by all callers at about the same time."""

    at: float
    version: str
    details: Mapping[str, Any]


Connect = Callable[[str, str | None], ServeTransport]
"""Function that creates the transport to an address with a token."""


class ServeClient:
    """Client that reads Serve and merges applications into it.

    ``wanted_version`` is the wanted version of Ray. If it is given, major and minor must be equal. One read serves
    every deployment on that Ray for ``fresh_s`` seconds. A put by this client counts at once.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        session: aiohttp.ClientSession | None = None,
        importable: Importable | None = None,
        wanted_version: str = "",
        fresh_s: float = 0.5,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._connect = connect
        self._session = session
        self._importable = importable
        self._wanted_version = wanted_version
        self._fresh_s = fresh_s
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._readings: dict[tuple[str, str | None], _Reading] = {}

    @classmethod
    def over_http(cls, session: aiohttp.ClientSession, **options: Any) -> Self:
        """Return a client for dashboards, and for the gateways behind Serve's proxy."""
        importable = Importable(lambda address, token: RestJobs(Dashboard(session, address, token)))

        def connect(address: str, token: str | None) -> ServeTransport:
            return RestTransport(Dashboard(session, address, token))

        return cls(connect, **{"session": session, "importable": importable, **options})

    def transport(self, address: str, token: str | None) -> ServeTransport:
        return self._connect(address, token)

    async def read(
        self, address: str, token: str | None, name: str, *, doors: bool = False, to_be_put: bool = False
    ) -> Serve:
        """Look for application ``name`` at ``address``; return obstacles in the result, and raise nothing.

        Both options are for external Rays. With ``doors`` the gateways are asked, through Serve's proxy, for the
        addresses of their own listeners. With ``to_be_put`` Ray is asked if it can import Octavo, unless the
        application exists there.
        """
        try:
            reading = await self._reading(address, token)
        except ServeError as error:
            if self._importable is not None and error.reach is Reach.UNREACHABLE:
                self._importable.forget(address)
            return Serve(address=address, reach=error.reach, message=error.message)
        found = serve_details.read_application(reading.details, name)
        application = serve_details.in_words(found) if found is not None else None
        # Other applications count by their presence: a Serve that has them has not lost ours, another client left it
        # out.
        others = {other: Application(other, "") for other in reading.details.get("applications") or {} if other != name}
        proxy = serve_details.proxy_url(reading.details, urlsplit(address).hostname or "")
        seen = Serve(
            address=address,
            reach=Reach.OK,
            ray_version=reading.version,
            applications=others | ({name: application} if application else {}),
            proxy_url=proxy,
        )
        if (hindrance := self._other_version(reading.version)) is not None:
            return replace(seen, reach=Reach.INCOMPATIBLE, message=hindrance)
        if to_be_put and (hindrance := await self._not_importable(seen, token, application)) is not None:
            return replace(seen, reach=Reach.INCOMPATIBLE, message=hindrance)
        if doors and proxy is not None and application is not None and application.status == "RUNNING":
            return replace(seen, doors=await self._doors(proxy, application))
        return seen

    async def put(
        self, address: str, token: str | None, application: Mapping[str, Any], options: Mapping[str, Any] | None = None
    ) -> None:
        """Deploy ``application`` beside all others; raise a ``ServeError`` on failure.

        ``options`` (``proxy_location``, ``http_options``) are Serve's, used if it does not run yet.
        """
        async with self._lock(address):
            transport = self.transport(address, token)
            if (hindrance := self._other_version(await transport.version())) is not None:
                raise Incompatible(hindrance)
            body = with_application(await transport.details(), application, options)
            await self._change(address, transport, body)

    async def remove(self, address: str, token: str | None, name: str, owner: str) -> None:
        """Remove application ``name`` if ``owner`` deployed it; raise a ``ServeError`` on failure."""
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
        """Return a fresh reading. By the lock waiting callers share one read, and no read sees half of our change."""
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

    async def _not_importable(self, seen: Serve, token: str | None, application: Application | None) -> str | None:
        """Return the reason that Octavo cannot be imported, None if no reason is known.

        Ask only if the application is not there. A running application has proved the import, and any other reports its
        own error.
        """
        if self._importable is None:
            return None
        if application is None:
            return await self._importable.hindrance(seen.address, token, seen.ray_version)
        if application.status == "RUNNING":
            await self._importable.seen_running(seen.address, token)
        return None

    async def _doors(self, proxy: str, application: Application) -> tuple[str, ...]:
        """Return the gateways' listeners; empty if no gateway answers, because serving does not depend on them."""
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
                return serve_details.read_doors(json.loads(await bounded(response, MOST_DOORS_BYTES)))
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError, Unreachable):
            return ()
