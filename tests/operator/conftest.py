import random
import time
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest

from octavo_operator.kube.api import HttpApi, load_configuration
from octavo_operator.kube.client import Kube
from octavo_operator.plan import plan
from octavo_operator.reconcile import Reconciler
from octavo_operator.serve import import_check
from octavo_operator.serve.client import ServeClient
from octavo_testing.operator.deployments import DEFAULTS
from octavo_testing.operator.fakes.api_http import FakeApiServer
from octavo_testing.operator.fakes.serve_http import RAY_VERSION, FakeServe
from octavo_testing.operator.plan_world import PlanWorld, serving_world


@pytest.fixture
async def api_server(tmp_path, monkeypatch) -> AsyncIterator[FakeApiServer]:
    """Start an API server in this process, to which ``KUBECONFIG`` leads."""
    async with FakeApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        yield server


@pytest.fixture
async def http_api(api_server) -> AsyncIterator[HttpApi]:
    api = HttpApi(await load_configuration(), timeout_s=5, connect_timeout_s=1)
    yield api
    await api.close()


@pytest.fixture
def kube(http_api) -> Kube:
    return Kube(http_api)


@pytest.fixture
async def ray_serve(monkeypatch) -> AsyncIterator[FakeServe]:
    """Start a Ray dashboard in this process. Its clock is fast, and the operator polls its jobs fast."""
    monkeypatch.setattr(import_check, "POLL_S", 0.01)
    monkeypatch.setattr(import_check, "DELETION_SETTLE_S", 0.05)
    async with FakeServe() as serve:
        yield serve


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def serve_client(session) -> ServeClient:
    return ServeClient.over_http(session, required_version=RAY_VERSION, fresh_s=0)


@pytest.fixture
def make(kube, serve_client):
    def make(planner=plan) -> Reconciler:
        return Reconciler(kube, serve_client, time, DEFAULTS, plan=planner, rng=random.Random(1))

    return make


@pytest.fixture(scope="session")
def world() -> Callable[..., PlanWorld]:
    return PlanWorld


@pytest.fixture(scope="session")
def serving() -> Callable[..., PlanWorld]:
    return serving_world
