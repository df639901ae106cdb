"""Checks that take a second or two, before anything starts. They load neither torch nor Ray."""

from pathlib import Path

from octavo_api.errors import ConfigurationError
from octavo_api.resource.deployment import ServingDeployment, Spec
from octavo_api.startup.model_source import locate
from octavo_cli.ports import require_free

HOST = "127.0.0.1"


def check(deployment: ServingDeployment, api_key_file: Path | None, cpus: float) -> None:
    """Raise the ``StartupError`` of the first problem. Fetch a ``hf://`` model."""
    endpoint = deployment.spec.endpoint
    require_free(HOST, endpoint.http.port, "HTTP")
    require_free(HOST, endpoint.grpc.port, "gRPC")
    _check_cpus(deployment, cpus)
    if api_key_file is not None:
        from octavo_router.front.keys import ApiKeys

        ApiKeys.from_file(api_key_file)
    _check_engine(deployment.spec)


def _check_cpus(deployment: ServingDeployment, cpus: float) -> None:
    limit, replicas = deployment.spec.resources.limits.cpu, deployment.spec.replicas
    if limit is not None and limit * replicas > cpus:
        raise ConfigurationError(
            f"spec.resources.limits.cpu: got {limit:g} for each of {replicas} replicas, "
            f"allowed: {cpus:g} for all replicas together, the CPUs of this machine"
        )


def _check_engine(spec: Spec) -> None:
    """Make the same plan as every engine replica: model files, settings and memory."""
    from octavo_engine.startup.engine_plan import plan_engine
    from octavo_text import ModelText

    files = locate(spec.model.uri, spec.model.revision)
    plan_engine(files, spec.engine, replicas_on_node=max(spec.replicas, 1), memory_limit=spec.resources.limits.memory)
    ModelText.load(files)
