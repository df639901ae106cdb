"""A Ray dashboard over HTTP, and behind the same port Serve's proxy with its gateways' doors."""

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from octavo_testing.operator.fakes.pace import Pace
from octavo_testing.operator.sweep.dashboard import RAY_VERSION, handle
from octavo_testing.operator.sweep.ray import Anywhere, Application, Deployment, Ray


@dataclass
class Answer:
    """Instead of what was asked for, to the next ``times`` calls; ``status`` 0 resets the connection."""

    status: int = 0
    body: str = ""
    times: int = 1
    method: str = ""
    """Only of this one, where given."""
    path: str = ""
    """Only to paths that begin with it."""
    delay: float = 0.0
    headers: Mapping[str, str] | None = None

    def fits(self, request: web.Request) -> bool:
        return self.method in ("", request.method) and request.path.startswith(self.path)


class FakeServe:
    """``ray`` is what runs; ``address`` is its dashboard's."""

    def __init__(self, *, speed: float = 50.0, seed: int = 0, token: str | None = None) -> None:
        self._pace = Pace(speed, fast_clock=True)
        self._seed = seed
        self._token = token
        self.version = RAY_VERSION
        self.address = ""
        self.doors: Any = {"doors": ["http://10.0.0.1:40000", "grpc://10.0.0.1:40001"]}
        self.answers: list[Answer] = []
        self.calls: list[tuple[str, str]] = []
        self.headers: list[Mapping[str, str]] = []
        self.puts: list[dict[str, Any]] = []
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> "FakeServe":
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.ray = Ray(self._pace, random.Random(self._seed), self.address, _anywhere, self._token)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def foreign(self, name: str, **config: Any) -> dict[str, Any]:
        """Deploys an application of somebody else beside what is there; returns its configuration."""
        wanted = {
            "name": name,
            "route_prefix": f"/{name}",
            "import_path": "their.module:app",
            "args": {"anything": [1, {"at": "all"}]},
            "runtime_env": {"env_vars": {"THEIRS": "1"}},
            "deployments": [{"name": "Theirs", "num_replicas": 1, "user_config": {"threshold": 0.5}}],
            **config,
        }
        kept = [dict(found.config) for other, found in self.ray.applications.items() if other != name]
        self.ray.put({"applications": [*kept, wanted]})
        return wanted

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.calls.append((request.method, request.path))
        self.headers.append(dict(request.headers))
        answer = next((one for one in self.answers if one.times > 0 and one.fits(request)), None)
        if answer is not None:
            answer.times -= 1
            await asyncio.sleep(answer.delay)
            if answer.status == 0:
                assert request.transport is not None
                request.transport.abort()
                return web.Response(status=500)
            return web.Response(status=answer.status, text=answer.body, headers=answer.headers)
        if request.path.endswith("/doors"):
            return self._doors(request.path.removesuffix("/doors"))
        if not request.path.startswith("/api/"):
            return web.Response(status=404, text="404: Not Found")
        body = await request.json() if request.can_read_body else None
        status, answer = handle(
            self.ray,
            request.method,
            request.path,
            body,
            token=request.headers.get("Authorization", "").removeprefix("Bearer "),
            version=self.version,
        )
        if request.method == "PUT" and status == 200:
            self.puts.append(json.loads(json.dumps(body)))
        if isinstance(answer, str):
            return web.Response(status=status or 503, text=answer)
        if "http_options" in answer:
            answer["http_options"]["port"] = self.port
        return web.json_response(answer, status=status)

    def _doors(self, prefix: str) -> web.Response:
        running = any(found.config.get("route_prefix") == prefix for found in self.ray.applications.values())
        return web.json_response(self.doors) if running else web.Response(status=404, text="Path not found")


def _anywhere(_: Application, __: Deployment) -> Anywhere:
    return Anywhere()
