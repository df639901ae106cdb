"""Conversion of a ``ServingDeployment`` to one application of Ray Serve's REST schema.

Pure, so that ``octavo up`` and the operator share it.

The place of a value decides which replicas a change replaces. A change of ``args`` replaces all replicas of the
application. A change of ``ray_actor_options`` replaces the replicas of one deployment. If only ``user_config`` changes,
Serve calls ``reconfigure``. So the model is in ``args``, rolling settings of the engine are in an environment variable
of its replicas, and live settings are in ``user_config``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from octavo_api.errors import ConfigurationError
from octavo_api.resource.deployment import Autoscaling, ServingDeployment
from octavo_api.settings import Change, EngineSettings, RouterSettings, Settings, change_of

IMPORT_PATH = "octavo_serving.app:build"
AUTOSCALING_POLICY = "octavo_serving.autoscaling:policy"
ENGINE = "Engine"
GATEWAY = "Gateway"
ENGINE_VARIABLE = "OCTAVO_ENGINE"
"""Environment variable of an engine's replica: ``EngineEnvironment`` in JSON."""
LOG_VARIABLE = "OCTAVO_LOG_STREAM"
"""Environment variable of pods: the file to which replicas write their logs, one JSON object a line."""
CONTAINER_LOG = "container"
"""Value of ``LOG_VARIABLE`` for the standard output of the replica's container."""

HEALTH_CHECK_TIMEOUT_S = 10
_MAX_ONGOING_REQUESTS = 2**20
_SHUTDOWN_MARGIN_S = 5
_NEVER_REACHED = 10**12
_REPORT_S, _LOOK_BACK_S = 2, 4
"""Seconds between two reports of an engine's load, and seconds over which Serve takes the highest. Both are short:
the delays of autoscaling keep a peak from counting too much."""


class Bind(StrEnum):
    """Addresses on which gateways and engines listen."""

    LOOPBACK = "loopback"
    """127.0.0.1 only: everything is on one machine."""
    NODE = "node"
    """Gateways on every interface, engines on the node's own address."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ApplicationArgs(_Message):
    """Arguments of ``octavo_serving.app:build``. A change of one replaces all replicas.

    ``owner`` names the owner of the application: ``NAMESPACE/NAME`` of a resource, or ``local``. Port 0 selects a free
    port. ``tls_folder`` holds ``tls.crt`` and ``tls.key``. Secrets are in files that the replicas read, never in here.
    """

    owner: str
    model_uri: str
    model_revision: str | None = None
    bind: Bind = Bind.NODE
    http_port: int = Field(8000, ge=0, le=65535)
    grpc_port: int = Field(9000, ge=0, le=65535)
    tls_folder: str | None = None
    api_key_file: str | None = None


class EngineEnvironment(_Message):
    """Configuration whose change rolls engine replicas and nothing else. ``memory_limit`` is in bytes."""

    settings: dict[str, Any] = {}
    replicas_on_node: int = Field(1, ge=1)
    memory_limit: int | None = None


class EngineUserConfig(_Message):
    """Configuration that a running engine replica applies. A target is the load that counts as one replica."""

    settings: dict[str, Any] = {}
    drain_seconds: int = Field(600, ge=0)
    target_requests: int = Field(32, ge=1)
    target_cache_percent: int = Field(80, ge=1, le=100)


class GatewayUserConfig(_Message):
    """Configuration that a running gateway applies.

    With ``hold_requests`` an engine starts when a request arrives. Requests wait for it instead of failing at once.
    """

    served_name: str
    settings: dict[str, Any] = {}
    drain_seconds: int = Field(600, ge=0)
    hold_requests: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Facts about the place an application runs in, which the document does not contain.

    ``name`` and ``owner`` (``args.owner``) belong to the application. ``route_prefix`` is its path behind
    Serve's own proxy. ``http_port`` and ``grpc_port`` are ports of the gateways; 0 selects a free one. ``engine_cpus``
    and ``gateway_cpus`` are Ray CPUs of one replica, and the two ``…_resources`` its custom Ray resources.
    ``replicas_on_node`` divides the default KV cache. ``surge`` allows additional engines while engines are replaced.
    Folder and file are paths as replicas see them.
    """

    name: str
    owner: str
    bind: Bind
    http_port: int
    grpc_port: int
    engine_cpus: float
    gateway_cpus: float
    replicas_on_node: int = 1
    surge: bool = True
    engine_resources: Mapping[str, float] = field(default_factory=dict)
    gateway_resources: Mapping[str, float] = field(default_factory=dict)
    tls_folder: str | None = None
    api_key_file: str | None = None
    route_prefix: str = "/"


def application(deployment: ServingDeployment, placement: Placement) -> dict[str, Any]:
    """Return one element of ``applications`` for ``PUT /api/serve/applications/``."""
    spec = deployment.spec
    args = ApplicationArgs(
        owner=placement.owner,
        model_uri=spec.model.uri,
        model_revision=spec.model.revision,
        bind=placement.bind,
        http_port=placement.http_port,
        grpc_port=placement.grpc_port,
        tls_folder=placement.tls_folder,
        api_key_file=placement.api_key_file,
    )
    scaling = spec.autoscaling
    environment = EngineEnvironment(
        settings=_changed(spec.engine, lambda change: change is not Change.LIVE),
        replicas_on_node=placement.replicas_on_node,
        memory_limit=spec.resources.limits.memory,
    )
    engine_config = EngineUserConfig(
        settings=_changed(spec.engine, lambda change: change is Change.LIVE),
        drain_seconds=spec.rollout.drain_seconds,
        **({} if scaling is None else scaling.model_dump(include={"target_requests", "target_cache_percent"})),
    )
    router = RouterSettings(**{name: getattr(spec.router, name) for name in RouterSettings.model_fields})
    gateway_config = GatewayUserConfig(
        served_name=deployment.served_name,
        settings=_changed(router, lambda change: change is Change.LIVE),
        drain_seconds=spec.rollout.drain_seconds,
        hold_requests=scaling is not None and scaling.min_replicas == 0,
    )
    engine = {
        **_deployment(ENGINE, engine_config, spec.rollout.drain_seconds),
        "autoscaling_config": _fixed(spec.replicas) if scaling is None else _by_load(scaling),
        "max_surge_percent": spec.rollout.max_surge_percent if placement.surge else 0,
        "ray_actor_options": {
            **_ray_resources(placement.engine_cpus, placement.engine_resources),
            "runtime_env": {"env_vars": {ENGINE_VARIABLE: _json(environment)}},
        },
    }
    gateway = {
        **_deployment(GATEWAY, gateway_config, spec.rollout.drain_seconds),
        "autoscaling_config": _fixed(spec.router.replicas),
        # A new gateway starts first, as a standby, and opens the ports when the old one releases them.
        "max_surge_percent": 100,
        "ray_actor_options": _ray_resources(placement.gateway_cpus, placement.gateway_resources),
    }
    return {
        "name": placement.name,
        "route_prefix": placement.route_prefix,
        "import_path": IMPORT_PATH,
        "args": args.model_dump(mode="json", exclude_defaults=True),
        "deployments": [engine, gateway],
    }


def engine_settings(environment: EngineEnvironment, config: EngineUserConfig) -> EngineSettings:
    """Join the settings that ``application`` split. Raise ``ConfigurationError``."""
    return EngineSettings.read({**environment.settings, **config.settings}, where="engine")


def read_environment(environ: Mapping[str, str]) -> EngineEnvironment:
    """Read the environment of an engine replica. Raise ``ConfigurationError`` if the variable is missing."""
    if ENGINE_VARIABLE not in environ:
        raise ConfigurationError(f"environment: {ENGINE_VARIABLE} is not set; deploy with the operator or octavo up")
    return EngineEnvironment.model_validate_json(environ[ENGINE_VARIABLE])


def _deployment(name: str, config: _Message, drain_seconds: int) -> dict[str, Any]:
    return {
        "name": name,
        "user_config": config.model_dump(mode="json"),
        "max_ongoing_requests": _MAX_ONGOING_REQUESTS,
        "graceful_shutdown_timeout_s": drain_seconds + _SHUTDOWN_MARGIN_S,
        "graceful_shutdown_wait_loop_s": 0.1,
        "health_check_period_s": 2,
        "health_check_timeout_s": HEALTH_CHECK_TIMEOUT_S,
    }


def _ray_resources(cpus: float, custom: Mapping[str, float]) -> dict[str, Any]:
    return {"num_cpus": cpus, **({"resources": dict(custom)} if custom else {})}


def _fixed(replicas: int) -> dict[str, Any]:
    """Return the configuration of a fixed count. It uses the autoscaler, because adding it later replaces all replicas.

    Serve requires a maximum of at least 1. No load reaches the target, so a count of 0 stays 0.
    """
    bounds = (replicas, max(replicas, 1))
    return _scaling(bounds, target=_NEVER_REACHED, upscale_delay_s=0, downscale_delay_s=0, to_zero_delay_s=0)


def _by_load(scaling: Autoscaling) -> dict[str, Any]:
    return _scaling(
        (scaling.min_replicas, scaling.max_replicas),
        target=1,
        upscale_delay_s=scaling.upscale_delay_seconds,
        downscale_delay_s=scaling.downscale_delay_seconds,
        to_zero_delay_s=scaling.downscale_to_zero_delay_seconds,
    )


def _scaling(
    bounds: tuple[int, int], *, target: int, upscale_delay_s: int, downscale_delay_s: int, to_zero_delay_s: int
) -> dict[str, Any]:
    """Return Serve's configuration of autoscaling. All of it changes live, except the policy and its arguments.

    A change of these would replace all replicas. Engines report the used share of a replica, and ``target`` is the
    share that each should use, so 1.
    """
    return {
        "min_replicas": bounds[0],
        "max_replicas": bounds[1],
        "target_ongoing_requests": target,
        "upscale_delay_s": upscale_delay_s,
        "downscale_delay_s": downscale_delay_s,
        "downscale_to_zero_delay_s": to_zero_delay_s,
        "metrics_interval_s": _REPORT_S,
        "look_back_period_s": _LOOK_BACK_S,
        "aggregation_function": "max",
        "policy": {"policy_function": AUTOSCALING_POLICY},
    }


def _changed(settings: Settings, wanted: Any) -> dict[str, Any]:
    """Return the fields that differ from their defaults. So a release with a new field changes no configuration."""
    values = settings.model_dump(mode="json", exclude_defaults=True)
    return {name: value for name, value in values.items() if wanted(change_of(type(settings), name))}


def _json(message: _Message) -> str:
    return json.dumps(message.model_dump(mode="json", exclude_defaults=True), sort_keys=True, separators=(",", ":"))
