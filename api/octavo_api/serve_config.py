"""``ServingDeployment`` → one application of Ray Serve's REST schema.

Pure, so that ``octavo up`` and the operator share it.

What a change rolls follows from where a value travels. Serve replaces every replica of an application whose ``args``
change, the replicas of one deployment whose ``ray_actor_options`` change, and calls ``reconfigure`` where only
``user_config`` does. So the model is in ``args``, the engine's rolling settings are in an environment variable of the
engine's replicas, and live settings are in ``user_config``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from octavo_api.deployment import ServingDeployment
from octavo_api.errors import ConfigurationError
from octavo_api.settings import Change, EngineSettings, RouterSettings, Settings

IMPORT_PATH = "octavo_serving.app:build"
AUTOSCALING_POLICY = "octavo_serving.autoscaling:policy"
ENGINE = "Engine"
GATEWAY = "Gateway"
ENGINE_VARIABLE = "OCTAVO_ENGINE"
"""Environment variable of an engine's replica: ``EngineEnvironment`` in JSON."""

_MAX_ONGOING_REQUESTS = 2**20
_SHUTDOWN_MARGIN_S = 5


class Bind(StrEnum):
    """Where gateways and engines listen."""

    LOOPBACK = "loopback"
    """127.0.0.1 only: everything is on one machine."""
    NODE = "node"
    """Gateways on every interface, engines on the node's own address."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ApplicationArgs(_Message):
    """Arguments of ``octavo_serving.app:build``. Files hold one secret each and are read by the replicas."""

    model_uri: str
    model_revision: str | None = None
    bind: Bind = Bind.NODE
    http_port: int = Field(8000, ge=1, le=65535)
    grpc_port: int = Field(9000, ge=1, le=65535)
    secret_file: str
    api_key_file: str | None = None


class EngineEnvironment(_Message):
    """What rolls engine replicas and nothing else. ``memory_limit`` is in bytes."""

    settings: dict[str, Any] = {}
    replicas_on_node: int = Field(1, ge=1)
    memory_limit: int | None = None


class EngineUserConfig(_Message):
    """What an engine replica takes up while it runs."""

    settings: dict[str, Any] = {}
    drain_seconds: int = Field(600, ge=0)


class GatewayUserConfig(_Message):
    """What a gateway takes up while it runs."""

    served_name: str
    settings: dict[str, Any] = {}
    drain_seconds: int = Field(600, ge=0)


@dataclass(frozen=True, slots=True)
class Placement:
    """What the document does not say: the place it runs in.

    ``engine_cpus`` and ``gateway_cpus`` are Ray CPUs of one replica, ``replicas_on_node`` says by how many the default
    KV cache is divided; ``route_prefix`` is the application's path behind Serve's own proxy.
    """

    bind: Bind
    engine_cpus: float
    gateway_cpus: float
    replicas_on_node: int
    secret_file: str
    api_key_file: str | None = None
    route_prefix: str = "/"


def application(deployment: ServingDeployment, placement: Placement) -> dict[str, Any]:
    """Returns an element of ``applications`` for ``PUT /api/serve/applications/``, named like the deployment."""
    spec = deployment.spec
    args = ApplicationArgs(
        model_uri=spec.model.uri,
        model_revision=spec.model.revision,
        bind=placement.bind,
        http_port=spec.endpoint.http.port,
        grpc_port=spec.endpoint.grpc.port,
        secret_file=placement.secret_file,
        api_key_file=placement.api_key_file,
    )
    environment = EngineEnvironment(
        settings=_changed(spec.engine, lambda change: change is not Change.LIVE),
        replicas_on_node=placement.replicas_on_node,
        memory_limit=spec.resources.limits.memory,
    )
    engine_config = EngineUserConfig(
        settings=_changed(spec.engine, lambda change: change is Change.LIVE),
        drain_seconds=spec.rollout.drain_seconds,
    )
    router = RouterSettings(**{name: getattr(spec.router, name) for name in RouterSettings.model_fields})
    gateway_config = GatewayUserConfig(
        served_name=deployment.served_name,
        settings=_changed(router, lambda change: change is Change.LIVE),
        drain_seconds=spec.rollout.drain_seconds,
    )
    engine = {
        **_deployment(ENGINE, spec.replicas, engine_config, spec.rollout.drain_seconds),
        "ray_actor_options": {
            "num_cpus": placement.engine_cpus,
            "runtime_env": {"env_vars": {ENGINE_VARIABLE: _json(environment)}},
        },
    }
    gateway = {
        **_deployment(GATEWAY, spec.router.replicas, gateway_config, spec.rollout.drain_seconds),
        # A new gateway starts first and stands by, then takes the ports over: the endpoint is never gone.
        "max_surge_percent": 100,
        "ray_actor_options": {"num_cpus": placement.gateway_cpus},
    }
    return {
        "name": deployment.metadata.name,
        "route_prefix": placement.route_prefix,
        "import_path": IMPORT_PATH,
        "args": args.model_dump(mode="json", exclude_defaults=True),
        "deployments": [engine, gateway],
    }


def engine_settings(environment: EngineEnvironment, config: EngineUserConfig) -> EngineSettings:
    """Joins what ``application`` split; raises ``ConfigurationError``."""
    return EngineSettings.read({**environment.settings, **config.settings}, where="engine")


def read_environment(environ: Mapping[str, str]) -> EngineEnvironment:
    """Reads an engine replica's environment; raises ``ConfigurationError`` where the variable is missing."""
    if ENGINE_VARIABLE not in environ:
        raise ConfigurationError(f"environment: {ENGINE_VARIABLE} is not set; deploy with octavo_api.serve_config")
    return EngineEnvironment.model_validate_json(environ[ENGINE_VARIABLE])


def _deployment(name: str, replicas: int, config: _Message, drain_seconds: int) -> dict[str, Any]:
    return {
        "name": name,
        "user_config": config.model_dump(mode="json"),
        "max_ongoing_requests": _MAX_ONGOING_REQUESTS,
        "autoscaling_config": _fixed(replicas),
        "graceful_shutdown_timeout_s": drain_seconds + _SHUTDOWN_MARGIN_S,
        "graceful_shutdown_wait_loop_s": 0.1,
        "health_check_period_s": 2,
        "health_check_timeout_s": 10,
    }


def _fixed(replicas: int) -> dict[str, Any]:
    """Counts are always the autoscaler's, since adding or removing its configuration would replace all replicas.

    Serve wants a maximum of at least 1; a target that no load reaches keeps a count of 0 at 0.
    """
    return {
        "min_replicas": replicas,
        "max_replicas": max(replicas, 1),
        "target_ongoing_requests": _MAX_ONGOING_REQUESTS,
        "downscale_delay_s": 0,
        "upscale_delay_s": 0,
        "policy": {"policy_function": AUTOSCALING_POLICY},
    }


def _changed(settings: Settings, wanted: Any) -> dict[str, Any]:
    """Returns the fields that are not at their defaults: a release that adds a field then changes no configuration."""
    values = settings.model_dump(mode="json", exclude_defaults=True)
    return {name: value for name, value in values.items() if wanted(_change(type(settings), name))}


def _change(model: type[Settings], name: str) -> Change:
    extra = model.model_fields[name].json_schema_extra
    assert isinstance(extra, dict)
    return Change(str(extra["x-octavo-change"]))


def _json(message: _Message) -> str:
    return json.dumps(message.model_dump(mode="json", exclude_defaults=True), sort_keys=True, separators=(",", ":"))
