"""Application of a cluster's document to one machine: which fields it rejects, and which it omits with a notice."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from octavo_api.deployment import RolloutStrategy, ServingDeployment, Spec
from octavo_api.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class _Field:
    """A field below ``spec``. ``applies`` returns True if the document sets it to something that counts there."""

    path: str
    applies: Callable[[Spec], bool]
    said: str


_REFUSED = (
    _Field(
        "rayCluster.external",
        lambda spec: spec.ray_cluster.external is not None,
        "octavo up serves in a Ray of its own; take it out, or apply the document to Kubernetes",
    ),
    _Field(
        "model.uri",
        lambda spec: spec.model.uri.startswith("pvc://"),
        "a PersistentVolumeClaim is mounted in Kubernetes only; give the model's folder: octavo up -f FILE /PATH",
    ),
    _Field("suspend", lambda spec: spec.suspend, "with true there is nothing to serve; take it out"),
)
_KEYS = _Field(
    "endpoint.apiKeySecretRef",
    lambda spec: spec.endpoint.api_key_secret_ref is not None,
    "a Secret is in Kubernetes; give the same keys by --api-key-file FILE, or take it out",
)
_LEFT_OUT = (
    _Field(
        "rayCluster.managed",
        lambda spec: bool(spec.ray_cluster.managed and spec.ray_cluster.managed.model_fields_set),
        "is about pods",
    ),
    _Field(
        "resources.requests", lambda spec: bool(spec.resources.requests.model_fields_set), "is about pods; limits count"
    ),
    _Field("router.resources", lambda spec: bool(spec.router.resources.model_fields_set), "is about pods"),
    _Field("router.replicas", lambda spec: spec.router.replicas != 1, "one gateway has the ports of this machine"),
    _Field(
        "rollout.strategy",
        lambda spec: spec.rollout.strategy is not RolloutStrategy.IN_PLACE,
        "is about changes of a running cluster",
    ),
    _Field(
        "rollout.maxSurgePercent",
        lambda spec: "max_surge_percent" in spec.rollout.model_fields_set,
        "all engines share this machine, and an old one stops before a new one starts",
    ),
    _Field("endpoint.service", lambda spec: bool(spec.endpoint.service.model_fields_set), "is about Kubernetes"),
    _Field(
        "endpoint.tlsSecretRef",
        lambda spec: spec.endpoint.tls_secret_ref is not None,
        "a Secret is in Kubernetes; here both doors are plain, and open on 127.0.0.1 only",
    ),
    _Field(
        "model.secretRef",
        lambda spec: spec.model.secret_ref is not None,
        "a Secret is in Kubernetes; here the variable HF_TOKEN, or `hf auth login`, gives access to the hub",
    ),
    _Field(
        "model.cache",
        lambda spec: spec.model.cache is not None,
        "a claim is in Kubernetes; here models are kept where Hugging Face keeps them (HF_HOME)",
    ),
)


def fit(deployment: ServingDeployment, *, has_keys: bool) -> tuple[ServingDeployment, tuple[str, ...]]:
    """Return the document as it counts on one machine, and a line about each omitted field.

    ``has_keys`` is True if the user gives API keys in another way. Raise ``ConfigurationError`` with a line for
    each field that this machine cannot provide and ``fit`` must not ignore.
    """
    refused = _REFUSED if has_keys else (*_REFUSED, _KEYS)
    if wrong := [field for field in refused if field.applies(deployment.spec)]:
        raise ConfigurationError("\n".join(f"spec.{field.path}: {field.said}" for field in wrong))
    left_out = [field for field in _LEFT_OUT if field.applies(deployment.spec)]
    document = deployment.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for field in (*left_out, *([_KEYS] if has_keys and _KEYS.applies(deployment.spec) else [])):
        _take_out(document["spec"], field.path)
    lines = tuple(f"Not used here: spec.{field.path}: {field.said}" for field in left_out)
    return ServingDeployment.read(document), lines


def _take_out(spec: dict[str, Any], path: str) -> None:
    *sections, last = path.split(".")
    for section in sections:
        spec = spec[section]
    del spec[last]
