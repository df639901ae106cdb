"""A Ray dashboard's REST interface, as the operator uses it: no redirects, bounded answers, nothing foreign echoed."""

import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from octavo_operator.serve.details import VERSION
from octavo_operator.serve.errors import AuthFailed, Incompatible, Refused, Unreachable

APPLICATIONS_PATH, VERSION_PATH = "/api/serve/applications/", "/api/version"
TIMEOUT_S, CONNECT_TIMEOUT_S = 30.0, 5.0
MAX_BYTES = 64 * 2**20


class Dashboard:
    """Address and token of one dashboard. The token is sent to no other address."""

    def __init__(self, session: aiohttp.ClientSession, address: str, token: str | None) -> None:
        self._session = session
        self.address = address.rstrip("/")
        # Ray redacts its answers to browsers; a proxy in front may take the first header for itself.
        self._headers = {"User-Agent": "octavo-operator", "Accept": "application/json"}
        if token is not None:
            bearer = f"Bearer {token}"
            self._headers |= {"Authorization": bearer, "X-Ray-Authorization": bearer}

    async def call(
        self, method: str, path: str, body: Any = None, *, max_bytes: int | None = None
    ) -> tuple[int, bytes]:
        """Return the status and, if it is 200, at most ``max_bytes`` bytes; raise ``Unreachable`` without answer."""
        try:
            async with self._session.request(
                method,
                self.address + path,
                headers=self._headers,
                json=body,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S),
            ) as response:
                if response.status != 200:
                    return response.status, b""
                return response.status, await read_bounded(response, MAX_BYTES if max_bytes is None else max_bytes)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise Unreachable(f"{self.address}: {_describe(error)}") from None

    def parse_object(self, body: bytes) -> dict[str, Any]:
        """Read an object of JSON; raise ``Unreachable`` if it is none."""
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Unreachable(f"{self.address}: does not answer as a Ray dashboard; check the address")
        return answer


class RestTransport:
    """Serve behind a dashboard, as a ``ServeTransport``."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._address = dashboard.address

    async def version(self) -> str:
        version = (await self._read(VERSION_PATH)).get("ray_version")
        if not isinstance(version, str) or not VERSION.fullmatch(version):
            raise Unreachable(f"{self._address}: answers, but reports no Ray version; is this a Ray dashboard?")
        return version

    async def details(self) -> Mapping[str, Any]:
        answer = await self._read(APPLICATIONS_PATH)
        if not isinstance(answer.get("applications"), dict):
            raise Unreachable(f"{self._address}: does not answer as Ray Serve; check the address")
        return answer

    async def put_config(self, config: Mapping[str, Any]) -> None:
        await self._call("PUT", APPLICATIONS_PATH, config)

    async def _read(self, path: str) -> dict[str, Any]:
        return self._dashboard.parse_object(await self._call("GET", path, None))

    async def _call(self, method: str, path: str, body: Any) -> bytes:
        status, answer = await self._dashboard.call(method, path, body)
        self._check(status, method)
        return answer

    def _check(self, status: int, method: str) -> None:
        match status:
            case 200:
                return
            case 401 | 403:
                raise AuthFailed(f"{self._address}: {status}: Ray rejects the token, or requires one")
            case 501:
                raise Incompatible(f"{self._address}: this Ray has no Serve; install ray[serve] there")
            case 404 if method == "GET":
                raise Unreachable(f"{self._address}: 404: no Ray dashboard at this address")
            case 400 | 422:
                raise Refused(
                    f"{self._address}: {status}: Serve rejects the configuration; Ray's dashboard logs the reason"
                )
            case _ if 300 <= status < 400:
                raise Unreachable(
                    f"{self._address}: {status}: the operator follows no redirects; enter the final address"
                )
            case _:
                raise Unreachable(f"{self._address}: unexpected status {status}")


async def read_bounded(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """Read a body of at most ``max_bytes`` bytes; raise ``Unreachable`` if it is longer."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(65536):
        body += chunk
        if len(body) > max_bytes:
            raise Unreachable(f"{response.url.origin()}: the answer is longer than {max_bytes} bytes")
    return bytes(body)


def _describe(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return type(error).__name__ if not isinstance(error, OSError) else (error.strerror or type(error).__name__)
