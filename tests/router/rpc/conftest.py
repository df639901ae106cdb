from collections.abc import AsyncIterator

import grpc
import pytest_asyncio

from octavo_api.v1 import inference_pb2_grpc
from octavo_router.gateway_server import GatewayServer


@pytest_asyncio.fixture
async def channel(server: GatewayServer) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        yield channel


@pytest_asyncio.fixture
async def stub(channel: grpc.aio.Channel) -> inference_pb2_grpc.InferenceStub:
    return inference_pb2_grpc.InferenceStub(channel)
