"""Health and reflection."""

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE = "octavo.v1.Inference"


async def test_health_is_serving_only_while_a_replica_is_routable(channel, pool):
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", SERVICE):
        assert (await health.Check(health_pb2.HealthCheckRequest(service=name))).status == SERVING
    watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
    seen = [(await watch.read()).status]
    pool.routable = False
    seen.append((await asyncio.wait_for(watch.read(), 20)).status)
    pool.routable = True
    seen.append((await asyncio.wait_for(watch.read(), 20)).status)
    assert seen == [SERVING, NOT_SERVING, SERVING]
    watch.cancel()


async def test_reflection_describes_the_service(server):
    def ask():
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            services = database.get_services()
            file = database.FindFileContainingSymbol(SERVICE)
            return services, [method.name for service in file.service for method in service.method]

    services, methods = await asyncio.to_thread(ask)
    assert {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} <= set(services)
    assert methods == ["Generate", "GenerateStream", "ListModels"]
