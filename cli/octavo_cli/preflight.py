"""What can be refused within a second or two, before anything is started: neither torch nor Ray is loaded for it."""

from pathlib import Path

from octavo_api.deployment import Model, ServingDeployment
from octavo_api.errors import ConfigurationError
from octavo_api.model_source import locate
from octavo_cli.ports import require_free

HOST = "127.0.0.1"


def check(deployment: ServingDeployment, api_key_file: Path | None, cpus: float) -> None:
    """Raises the ``StartupError`` of the first thing that is wrong; fetches a ``hf://`` model."""
    endpoint = deployment.spec.endpoint
    require_free(HOST, endpoint.http.port, "HTTP")
    require_free(HOST, endpoint.grpc.port, "gRPC")
    _check_cpus(deployment, cpus)
    if api_key_file is not None:
        from octavo_router.keys import ApiKeys

        ApiKeys.load(api_key_file)
    _check_model(deployment.spec.model)


def _check_cpus(deployment: ServingDeployment, cpus: float) -> None:
    limit, replicas = deployment.spec.resources.limits.cpu, deployment.spec.replicas
    if limit is not None and limit * replicas > cpus:
        raise ConfigurationError(
            f"spec.resources.limits.cpu: got {limit:g} for each of {replicas} replicas, "
            f"allowed: {cpus:g} for all of them, which is what this machine gives"
        )


def _check_model(model: Model) -> None:
    files = locate(model.uri, model.revision)

    from octavo_engine.weights.checkpoint import open_checkpoint
    from octavo_router.text import ModelText

    open_checkpoint(files)
    ModelText.load(files)
