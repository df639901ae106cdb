"""Import path ``octavo_serving.app:build`` of each application that ``octavo_api.resource.serve_config`` builds."""

from ray import serve
from ray.serve import Application

from octavo_api.resource.serve_config import ENGINE, GATEWAY, ApplicationArgs
from octavo_serving import ray_adapter
from octavo_serving.engine_replica import EngineReplica
from octavo_serving.gateway_replica import GatewayReplica


def build(args: ApplicationArgs) -> Application:
    """Build the application in Serve's build task. Counts and settings come from the configuration, not from here."""
    return compose(args, EngineReplica, GatewayReplica)


def compose(args: ApplicationArgs, engine: type[EngineReplica], gateway: type[GatewayReplica]) -> Application:
    """Bind a gateway to an engine. The gateway's handle mirrors the engine's replicas and carries no requests."""
    engines = ray_adapter.deployment(engine, name=ENGINE, request_router_config=ray_adapter.mirror_router_config())
    gateways = ray_adapter.deployment(serve.ingress()(gateway), name=GATEWAY)
    return gateways.bind(engines.bind(args), args)
