"""Replicas with the synthetic runner, and gateways by hand. Both are checked at the end of each test."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from octavo_testing.engine.gateway import Gateway
from octavo_testing.engine.replica import Replica, start_replica


@pytest_asyncio.fixture
async def serve() -> AsyncIterator[Callable[..., Awaitable[Replica]]]:
    """Start replicas. The core of each must be whole at the end of the test."""
    replicas: list[Replica] = []

    async def start(**options: Any) -> Replica:
        replicas.append(await start_replica(**options))
        return replicas[-1]

    yield start
    for replica in replicas:
        await replica.stop()


@pytest_asyncio.fixture
async def make_gateway() -> AsyncIterator[Callable[..., Gateway]]:
    """Make gateways. None may have received a wrong message by the end of the test."""
    gateways: list[Gateway] = []

    def make(replica: Replica | int, **options: Any) -> Gateway:
        gateways.append(Gateway(replica if isinstance(replica, int) else replica.port, **options))
        return gateways[-1]

    yield make
    for gateway in gateways:
        await gateway.close()


@pytest.fixture
def attach(make_gateway: Callable[..., Gateway]) -> Callable[..., Awaitable[Gateway]]:
    """Make gateways that have received the hello, and that read messages."""

    async def start(replica: Replica | int, *, read: bool = True, **options: Any) -> Gateway:
        return await make_gateway(replica, **options).attach(read=read)

    return start
