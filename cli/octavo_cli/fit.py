"""Application of a cluster's document to one machine, with the fields that it rejects or omits with a notice."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from octavo_api.errors import ConfigurationError
from octavo_api.resource.deployment import RolloutStrategy, ServingDeployment, Spec


@dataclass(frozen=True, slots=True)
class _Field:
    """A field below ``spec``. ``applies`` returns True if its value has an effect in a cluster."""

    path: str
    applies: Callable[[Spec], bool]
    advice: str


_REJECTED = (
    _Field(
        "rayCluster.external",
        lambda spec: spec.ray_cluster.external is not None,
        "octavo up starts its own Ray; remove the field, or apply the document to Kubernetes",
    ),
    _Field(
        "model.uri",
        lambda spec: spec.model.uri.startswith("pvc://"),
        "only Kubernetes mounts a PersistentVolumeClaim; pass the model's folder: octavo up -f FILE /PATH",
    ),
    _Field("suspend", lambda spec: spec.suspend, "with true, nothing is served; remove the field"),
)
_KEYS = _Field(
    "endpoint.apiKeySecretRef",
    lambda spec: spec.endpoint.api_key_secret_ref is not None,
    "only Kubernetes has Secrets; pass the same keys by --api-key-file FILE, or remove the field",
)
_OMITTED = (
    _Field(
        "rayCluster.managed",
        lambda spec: bool(spec.ray_cluster.managed and spec.ray_cluster.managed.model_fields_set),
        "it configures pods",
    ),
    _Field(
        "resources.requests",
        lambda spec: bool(spec.resources.requests.model_fields_set),
        "it configures pods; limits apply",
    ),
    _Field("router.resources", lambda spec: bool(spec.router.resources.model_fields_set), "it configures pods"),
    _Field("router.replicas", lambda spec: spec.router.replicas != 1, "one gateway uses the ports of this machine"),
    _Field(
        "rollout.strategy",
        lambda spec: spec.rollout.strategy is not RolloutStrategy.IN_PLACE,
        "it configures changes of a running cluster",
    ),
    _Field(
        "rollout.maxSurgePercent",
        lambda spec: "max_surge_percent" in spec.rollout.model_fields_set,
        "all engines share this machine, and an old one stops before a new one starts",
    ),
    _Field(
        "endpoint.service",
        lambda spec: bool(spec.endpoint.service.model_fields_set),
        "it configures a Service",
    ),
    _Field(
        "endpoint.tlsSecretRef",
        lambda spec: spec.endpoint.tls_secret_ref is not None,
        "only Kubernetes has Secrets; octavo up listens without TLS, on 127.0.0.1 only",
    ),
    _Field(
        "model.secretRef",
        lambda spec: spec.model.secret_ref is not None,
        "only Kubernetes has Secrets; set the variable HF_TOKEN or run `hf auth login` for access to the hub",
    ),
    _Field(
        "model.cache",
        lambda spec: spec.model.cache is not None,
        "only Kubernetes has claims; octavo up stores models in the cache of Hugging Face (HF_HOME)",
    ),
)


def fit(deployment: ServingDeployment, *, has_keys: bool) -> tuple[ServingDeployment, tuple[str, ...]]:
    """Return the document as it counts on one machine, and a line about each omitted field.

    ``has_keys`` is True if the user gives API keys in another way. Raise ``ConfigurationError`` with a line for
    each field that this machine cannot provide and ``fit`` must not ignore.
    """
    rejected = _REJECTED if has_keys else (*_REJECTED, _KEYS)
    if wrong := [field for field in rejected if field.applies(deployment.spec)]:
        raise ConfigurationError("\n".join(f"spec.{field.path}: {field.advice}" for field in wrong))
    omitted = [field for field in _OMITTED if field.applies(deployment.spec)]
    document = deployment.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for field in (*omitted, *([_KEYS] if has_keys and _KEYS.applies(deployment.spec) else [])):
        _delete(document["spec"], field.path)
    lines = tuple(f"Ignored: spec.{field.path}: {field.advice}" for field in omitted)
    return ServingDeployment.read(document), lines


def _delete(spec: dict[str, Any], path: str) -> None:
    *sections, last = path.split(".")
    for section in sections:
        spec = spec[section]
    del spec[last]
