"""The whole operator in this process, against the fakes over HTTP, and questions about its deployments."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from octavo_operator.health import Limits
from octavo_operator.loop.handlers import WatchTimes
from octavo_operator.main import Operator
from octavo_operator.options import Options
from octavo_operator.plan import plan
from octavo_operator.serve.client import ServeClient
from octavo_testing.operator.fakes.api_http import FakeApiServer
from octavo_testing.operator.fakes.contract_kube import deployment
from octavo_testing.operator.sweep.dashboard import RAY_VERSION
from octavo_testing.waiting import eventually_async

TIMES = WatchTimes(
    server_timeout=3,
    client_timeout=5,
    inactivity_timeout=0.7,
    reconnect_backoff=0.01,
    error_backoffs=(0.05, 0.1, 0.2),
)


@asynccontextmanager
async def running(
    times: WatchTimes = TIMES, limits: Limits | None = None, namespaces: tuple[str, ...] = ()
) -> AsyncIterator[Operator]:
    """Run the operator until the block ends. An error that ended the operator is raised then."""
    options = Options(image="octavo:1", health_port=0, metrics_port=0, resync_seconds=3600, namespaces=namespaces)

    def connect_serve(session: aiohttp.ClientSession) -> ServeClient:
        return ServeClient.over_http(session, required_version=RAY_VERSION, fresh_s=0.05)

    operator = Operator(options, plan=plan, times=times, limits=limits, kinds_poll_s=0.1, connect_serve=connect_serve)
    task = asyncio.create_task(operator.run())
    try:
        yield operator
    finally:
        if task.done():
            await task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def watching(server: FakeApiServer, plural: str = "servingdeployments") -> bool:
    return any(stream.plural == plural for stream in server.streams)


def create(server: FakeApiServer, address: str, name: str = "books", namespace: str = "default") -> None:
    """Create a deployment on the external Ray at ``address``."""
    document = deployment(namespace, name)
    document["spec"]["rayCluster"] = {"external": {"dashboardURL": address}}
    server.api.create("user", document)


def status(server: FakeApiServer, name: str = "books", namespace: str = "default") -> dict[str, Any]:
    return (server.api.get("ServingDeployment", namespace, name) or {}).get("status", {})


def ready(server: FakeApiServer, name: str = "books", namespace: str = "default") -> bool:
    """Return True if the current generation is ready."""
    found = server.api.get("ServingDeployment", namespace, name)
    conditions = {one["type"]: one for one in status(server, name, namespace).get("conditions", ())}
    condition = conditions.get("Ready", {})
    generation = found["metadata"]["generation"] if found else None
    return condition.get("status") == "True" and condition.get("observedGeneration") == generation


async def get(operator: Operator, path: str) -> tuple[int, str]:
    """Return status and text of the operator's own HTTP server."""
    assert operator.health is not None
    url = f"http://127.0.0.1:{operator.health.ports[0]}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def until(what: str, condition: Any, seconds: float = 30) -> None:
    await eventually_async(what, condition, seconds, 0.02)
