"""Gateways that really listen, over a scripted pool."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from octavo_api.settings import RouterSettings
from octavo_api.startup.model_source import ModelFiles
from octavo_router.gateway_server import GatewayServer
from octavo_testing.router.byte_model import MODEL, write_byte_model
from octavo_testing.router.scripted_pool import ScriptedPool, Writer, greet
from octavo_text import ModelText


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return write_byte_model(tmp_path_factory.mktemp("byte-model"))


@pytest.fixture(scope="session")
def text(byte_model: ModelFiles) -> ModelText:
    return ModelText.load(byte_model)


@pytest.fixture
def write() -> type[Writer]:
    return Writer


@pytest.fixture
def pool() -> ScriptedPool:
    """Pool that answers every choice with ``Hello, world`` and an end of text."""
    return ScriptedPool(greet)


@pytest.fixture
def settings() -> RouterSettings:
    return RouterSettings(request_timeout_seconds=20, max_body_bytes=256 * 1024)


StartGateway = Callable[..., Awaitable[GatewayServer]]


@pytest_asyncio.fixture
async def start_gateway(text: ModelText, settings: RouterSettings) -> AsyncIterator[StartGateway]:
    servers: list[GatewayServer] = []

    async def start(pool: Any, *, text: ModelText = text, settings: RouterSettings = settings, **parts: Any) -> Any:
        server = GatewayServer(text=text, served_name=MODEL, settings=settings, pool=pool, **parts)
        await server.start("127.0.0.1", 0, "127.0.0.1", 0)
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.stop()


@pytest_asyncio.fixture
async def server(start_gateway: StartGateway, pool: ScriptedPool) -> GatewayServer:
    """A gateway over the scripted pool."""
    return await start_gateway(pool)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("# comment\n\nacme  key-of-acme-1\nacme  key-of-acme-2\nzeta  key-of-zeta-1\n")
    return path
