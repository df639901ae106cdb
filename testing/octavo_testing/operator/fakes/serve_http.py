"""A Ray dashboard over HTTP, and behind the same port Serve's proxy with its gateways' doors."""

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from octavo_testing.operator.fakes.pace import Pace
from octavo_testing.operator.sweep.jobs import Job
from octavo_testing.operator.sweep.ray import Application, Deployment, Ray, ServeError

RAY_VERSION = "2.60.0"


class Anywhere:
    """A node that never ends."""

    def alive(self) -> bool:
        return True

    def release(self) -> None:
        return


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
        self.token = token
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
        self.ray = Ray(self._pace, random.Random(self._seed), self.address, _anywhere, self.token)
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
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401, text="Unauthorized: Missing authentication token")
        match request.method, request.path:
            case "GET", "/api/version":
                return web.json_response({"version": "4", "ray_version": self.version, "ray_commit": "", "session": ""})
            case "GET", "/api/serve/applications/":
                return self._details()
            case "PUT", "/api/serve/applications/":
                return self._put(await request.json())
            case method, path if path.startswith("/api/jobs/"):
                return await self._jobs(request, method, path.removeprefix("/api/jobs/"))
            case "DELETE", _:
                raise AssertionError("DELETE would shut Serve down for everyone")
            case _:
                return web.Response(status=404, text="404: Not Found")

    def _details(self) -> web.Response:
        try:
            self.ray.advance()
            details = self.ray.get()
        except ServeError as error:
            return web.Response(status=error.code or 503, text="Failed to get a response from the controller.")
        if self.ray.started:
            details["http_options"] = {"host": "0.0.0.0", "port": self.port}
        return web.json_response(details)

    async def _jobs(self, request: web.Request, method: str, path: str) -> web.Response:
        jobs, (name, _, verb) = self.ray.jobs, path.partition("/")
        if method == "POST" and not path:
            body = await request.json()
            # Of a job of this id Ray's agent says 400, which the head turns into an error of its own.
            taken = jobs.submit(body["submission_id"], body["entrypoint"])
            return web.json_response({"submission_id": body["submission_id"]}) if taken else web.Response(status=500)
        if method == "GET" and not path:
            return web.json_response([_shown(name, jobs.find(name)) for name in jobs.known] + [{"type": "DRIVER"}])
        job = jobs.find(name)
        if job is None:
            return web.Response(status=404, text=f"Job {name} does not exist")
        match method, verb:
            case "GET", "":
                return web.json_response(_shown(name, job))
            case "POST", "stop":
                return web.json_response({"stopped": jobs.stop(name)})
            case "DELETE", "":
                deleted = jobs.delete(name)
                return web.json_response({"deleted": True}) if deleted else web.Response(status=500, text="Traceback")
        return web.Response(status=405)

    def _put(self, body: dict[str, Any]) -> web.Response:
        counts = [one.get("num_replicas", 1) for item in body["applications"] for one in item["deployments"]]
        if any(count < 0 for count in counts):
            return web.Response(status=400, text="1 validation error for ServeDeploySchema")
        try:
            self.ray.put(body)
        except ServeError as error:
            return web.Response(status=error.code or 503, text=repr(error))
        self.puts.append(json.loads(json.dumps(body)))
        return web.Response()

    def _doors(self, prefix: str) -> web.Response:
        running = any(found.config.get("route_prefix") == prefix for found in self.ray.applications.values())
        return web.json_response(self.doors) if running else web.Response(status=404, text="Path not found")


def _shown(name: str, job: Job) -> dict[str, Any]:
    shown = {"status": job.status, "driver_exit_code": job.exit_code, "message": job.message}
    return {"type": "SUBMISSION", "submission_id": name, **shown}


def _anywhere(_: Application, __: Deployment) -> Anywhere:
    return Anywhere()
