"""Client of Ray Serve. It changes applications by GET, merge and PUT under a lock per address, never by DELETE.

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

from octavo_operator.model.observed import Application, Reach, ServeState
from octavo_operator.serve import details as serve_details
from octavo_operator.serve.errors import Incompatible, ServeError, Unreachable
from octavo_operator.serve.import_check import ImportCheck
from octavo_operator.serve.jobs import RestJobs
from octavo_operator.serve.merge import with_application, without_application
from octavo_operator.serve.rest import Dashboard, RestTransport, read_bounded

LISTENERS_TIMEOUT_S, MAX_LISTENERS_BYTES = 3.0, 65536


class ServeTransport(Protocol):
    """Connection to one Serve. Calls raise a ``ServeError``."""

    async def version(self) -> str:
        """Return Ray's version."""

    async def details(self) -> Mapping[str, Any]:
        """Return Serve's details, as ``GET /api/serve/applications/`` does."""

    async def put_config(self, config: Mapping[str, Any]) -> None:
        """Replace all declared applications by those of ``config``; return before they run."""


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

    ``required_version`` is the required version of Ray; major and minor must be equal, and any version is allowed if it
    is empty. One read counts for all deployments on that Ray for ``fresh_s`` seconds. A change by this client ends it.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        session: aiohttp.ClientSession | None = None,
        import_check: ImportCheck | None = None,
        required_version: str = "",
        fresh_s: float = 0.5,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._connect = connect
        self._session = session
        self._import_check = import_check
        self._required_version = required_version
        self._fresh_s = fresh_s
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._readings: dict[tuple[str, str | None], _Reading] = {}

    @classmethod
    def over_http(cls, session: aiohttp.ClientSession, **options: Any) -> Self:
        """Return a client for dashboards, and for the gateways behind Serve's proxy."""
        import_check = ImportCheck(lambda address, token: RestJobs(Dashboard(session, address, token)))

        def connect(address: str, token: str | None) -> ServeTransport:
            return RestTransport(Dashboard(session, address, token))

        return cls(connect, **{"session": session, "import_check": import_check, **options})

    def transport(self, address: str, token: str | None) -> ServeTransport:
        return self._connect(address, token)

    async def fetch(
        self, address: str, token: str | None, name: str, *, with_listeners: bool = False, check_import: bool = False
    ) -> ServeState:
        """Fetch the state of application ``name`` at ``address``; report failures in the result, and raise nothing.

        Both options are for external Rays. With ``with_listeners`` the client requests the addresses of the gateways'
        own listeners through Serve's proxy. With ``check_import`` it checks if Ray can import Octavo, unless the
        application exists there.
        """
        try:
            reading = await self._reading(address, token)
        except ServeError as error:
            if self._import_check is not None and error.reach is Reach.UNREACHABLE:
                self._import_check.forget(address)
            return ServeState(address=address, reach=error.reach, message=error.message)
        found = serve_details.parse_application(reading.details, name)
        application = serve_details.with_plain_message(found) if found is not None else None
        # Only the presence of other applications counts: a Serve that has them has not lost ours, so another client
        # removed it.
        others = {other: Application(other, "") for other in reading.details.get("applications") or {} if other != name}
        proxy = serve_details.proxy_url(reading.details, urlsplit(address).hostname or "")
        state = ServeState(
            address=address,
            reach=Reach.OK,
            ray_version=reading.version,
            applications=others | ({name: application} if application else {}),
            proxy_url=proxy,
        )
        if (problem := self._version_problem(reading.version)) is not None:
            return replace(state, reach=Reach.INCOMPATIBLE, message=problem)
        if check_import and (problem := await self._import_problem(state, token, application)) is not None:
            return replace(state, reach=Reach.INCOMPATIBLE, message=problem)
        if with_listeners and proxy is not None and application is not None and application.status == "RUNNING":
            return replace(state, listeners=await self._listeners(proxy, application))
        return state

    async def deploy(
        self, address: str, token: str | None, application: Mapping[str, Any], options: Mapping[str, Any] | None = None
    ) -> None:
        """Deploy ``application`` beside all others; raise a ``ServeError`` on failure.

        ``options`` (``proxy_location``, ``http_options``) are Serve's, used if it does not run yet.
        """
        async with self._lock(address):
            transport = self.transport(address, token)
            if (problem := self._version_problem(await transport.version())) is not None:
                raise Incompatible(problem)
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
            await transport.put_config(body)
        finally:
            for key in [key for key in self._readings if key[0] == address]:
                del self._readings[key]

    async def _reading(self, address: str, token: str | None) -> _Reading:
        """Return a fresh reading. Under the lock, waiting callers share one read, and no change is in progress."""
        async with self._lock(address):
            now = self._now()
            for key in [key for key, reading in self._readings.items() if now - reading.at > self._fresh_s]:
                del self._readings[key]
            if (reading := self._readings.get((address, token))) is not None:
                return reading
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

    def _version_problem(self, version: str) -> str | None:
        required, found = self._required_version.split(".")[:2], version.split(".")[:2]
        if self._required_version and required != found:
            return f"the Ray there has version {version}; this version of Octavo needs Ray {'.'.join(required)}"
        return None

    async def _import_problem(
        self, state: ServeState, token: str | None, application: Application | None
    ) -> str | None:
        """Return the reason that Octavo cannot be imported, None if no reason is known.

        Check only if the application does not exist. A running application proves the import, and a failed one reports
        its own error.
        """
        if self._import_check is None:
            return None
        if application is None:
            return await self._import_check.import_problem(state.address, token, state.ray_version)
        if application.status == "RUNNING":
            await self._import_check.record_running(state.address, token)
        return None

    async def _listeners(self, proxy: str, application: Application) -> tuple[str, ...]:
        """Return the gateways' listeners; empty if no gateway answers, because serving does not depend on them."""
        if self._session is None:
            return ()
        prefix = str((application.config or {}).get("route_prefix") or "/").rstrip("/")
        try:
            async with self._session.get(
                f"{proxy}{prefix}/doors",
                headers={"User-Agent": "octavo-operator"},
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=LISTENERS_TIMEOUT_S),
            ) as response:
                if response.status != 200:
                    return ()
                return serve_details.parse_listeners(json.loads(await read_bounded(response, MAX_LISTENERS_BYTES)))
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError, Unreachable):
            return ()
