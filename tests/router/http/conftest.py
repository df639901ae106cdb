from collections.abc import AsyncIterator

import httpx
import openai
import pytest
import pytest_asyncio

from octavo_router.gateway_server import GatewayServer


@pytest_asyncio.fixture
async def http(server: GatewayServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.http_port}", timeout=30, verify=False) as client:
        yield client


@pytest_asyncio.fixture
async def client(server: GatewayServer) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's own client, unmodified."""
    url = f"http://127.0.0.1:{server.http_port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=30) as client:
        yield client


@pytest.fixture
def user() -> list[dict[str, str]]:
    return [{"role": "user", "content": "Hi"}]
