"""``ServingDeployment``: the document that describes a served model, in Kubernetes and for ``octavo up -f``.

Fields are lowerCamelCase in documents. Each declares its unit, its default, and the effect of a change.
"""

import unicodedata
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from octavo_api.errors import ConfigurationError
from octavo_api.resource.ray_cluster import External, Managed, RayCluster
from octavo_api.resource.sections import ApiKeyRef, ClaimRef, Resources, Section, TlsRef, TokenRef, Words, without_nulls
from octavo_api.rules import Rule, Transition
from octavo_api.settings import Change, EngineSettings, RouterSettings, explain, setting

API_VERSION: Literal["serving.octavo.dev/v1alpha1"] = "serving.octavo.dev/v1alpha1"
KIND: Literal["ServingDeployment"] = "ServingDeployment"

FINALIZER = "serving.octavo.dev/operator"
"""Finalizer in external mode only: the operator removes the application from a Ray that it does not own."""

_SCHEMES = ("embedded://", "hf://", "pvc://", "file://")


class Metadata(BaseModel):
    """Kubernetes' object metadata. Other fields, which a cluster adds, are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(max_length=40, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
    namespace: str = "default"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}

    _nulls = model_validator(mode="before")(without_nulls)


_URI = Rule(
    f"must start with one of {', '.join(_SCHEMES)}",
    " || ".join(f"self.startsWith('{scheme}')" for scheme in _SCHEMES),
    lambda uri: uri.startswith(_SCHEMES),
)


_SERVED_NAME = Rule(
    "must have no control characters",
    r"self.matches('^[^\\x00-\\x1f\\x7f-\\x{9f}]*$')",
    lambda name: not any(unicodedata.category(letter) == "Cc" for letter in name),
)
"""The name appears in headers, logs and metrics."""


class Model(Section):
    """The model and its name in requests."""

    RULES = (
        Rule(
            "revision requires a hf:// model",
            "!has(self.revision) || self.uri.startsWith('hf://')",
            lambda model: model.revision is None or model.uri.startswith("hf://"),
            at=".revision",
        ),
    )

    uri: Annotated[str, _URI] = setting(
        ...,
        "Where the model is: `embedded://smollm2`, `hf://ORGANISATION/NAME`, `pvc://CLAIM/PATH` in a claim of the "
        "namespace, or `file:///PATH` in the replica's file system; PATH is a folder or a `.gguf` file.",
        change=Change.ROLLING,
        max_length=2048,
    )
    revision: str | None = setting(
        None,
        "Commit, tag or branch of a `hf://` model.",
        change=Change.ROLLING,
        auto="main",
        min_length=1,
        max_length=128,
    )
    served_name: Annotated[str, _SERVED_NAME] | None = setting(
        None, "The model's name in requests.", change=Change.LIVE, auto="metadata.name", min_length=1, max_length=253
    )
    secret_ref: TokenRef | None = setting(
        None,
        "Access token of a `hf://` model. A replica reads a rotated token when it starts.",
        change=Change.NEW_CLUSTER,
        auto="none",
    )
    cache: ClaimRef | None = setting(
        None,
        "Claim for downloaded models and compiled kernels, shared by all replicas.",
        change=Change.NEW_CLUSTER,
        auto="the pod's own disk, gone with it",
    )


class Autoscaling(Section):
    """Scaling of engine replicas by running and waiting requests and by the cache that they hold."""

    RULES = (
        Rule(
            "minReplicas must not exceed maxReplicas",
            "!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",
            lambda scaling: scaling.min_replicas <= scaling.max_replicas,
            at=".minReplicas",
        ),
    )

    min_replicas: int = setting(
        1,
        "Fewest engine replicas; with 0, the gateway holds requests until an engine runs.",
        change=Change.LIVE,
        ge=0,
        le=1024,
    )
    max_replicas: int = setting(..., "Most engine replicas.", change=Change.LIVE, ge=1, le=1024)
    target_requests: int = setting(
        32, "Target of running and waiting requests of one replica.", change=Change.LIVE, ge=1, le=2**20
    )
    target_cache_percent: int = setting(
        80,
        "Target share of a replica's KV cache held by running requests; blocks that can be evicted do not count.",
        change=Change.LIVE,
        unit="percent",
        ge=1,
        le=100,
    )
    upscale_delay_seconds: int = setting(
        10,
        "Seconds for which the load must call for more replicas before they start.",
        change=Change.LIVE,
        unit="seconds",
        ge=0,
        le=86400,
    )
    downscale_delay_seconds: int = setting(
        300,
        "Seconds for which the load must call for fewer replicas before some stop.",
        change=Change.LIVE,
        unit="seconds",
        ge=0,
        le=86400,
    )
    downscale_to_zero_delay_seconds: int = setting(
        1800,
        "Seconds without a request before the last replica stops.",
        change=Change.LIVE,
        unit="seconds",
        ge=0,
        le=86400,
    )


class Router(RouterSettings, Section):
    """The gateways and their router."""

    replicas: int = setting(1, "Number of gateways.", change=Change.LIVE, ge=1, le=64)
    resources: Resources = setting(
        Resources(), "Resources of one gateway's pod.", change=Change.NEW_CLUSTER, auto="1 CPU and 1Gi"
    )


class RolloutStrategy(StrEnum):
    IN_PLACE = "InPlace"
    NEW_CLUSTER = "NewCluster"


class Rollout(Section):
    """Strategy and limits of a change."""

    strategy: RolloutStrategy = setting(
        RolloutStrategy.IN_PLACE,
        "Way to change a field that needs a new cluster. `InPlace` stops the old cluster first and interrupts service. "
        "`NewCluster` starts the new cluster beside the old one, needs double capacity and interrupts nothing.",
        change=Change.LIVE,
        strict=False,
    )
    drain_seconds: int = setting(
        600,
        "Maximum seconds for a replica to end its streams before it stops.",
        change=Change.LIVE,
        unit="seconds",
        ge=0,
        le=3600,
    )
    max_surge_percent: int = setting(
        25,
        "Additional engines during a replacement, in percent of the replicas, rounded up. New engines start first, and "
        "old engines answer until the new ones are ready. The cluster needs room for all of them. With 0 old "
        "engines stop first, and a single engine is absent until its successor is ready.",
        change=Change.LIVE,
        unit="percent",
        ge=0,
        le=100,
    )
    progress_deadline_seconds: int = setting(
        1800,
        "Maximum seconds without progress before the deployment is reported as stalled; the operator keeps retrying.",
        change=Change.LIVE,
        unit="seconds",
        ge=1,
        le=86400,
    )


class Port(Section):
    """One listener."""

    port: int = Field(ge=1, le=65535, description="TCP port.")


class ServiceType(StrEnum):
    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class Service(Section):
    """The Service in front of the gateways; in managed mode only."""

    type: ServiceType = setting(ServiceType.CLUSTER_IP, "Type of the Service.", change=Change.LIVE, strict=False)
    annotations: Words = setting({}, "Annotations of the Service.", change=Change.LIVE, max_length=64)


class Endpoint(Section):
    """Listeners, Service, certificate and API keys."""

    RULES = (
        Rule(
            "http.port and grpc.port must differ",
            "(has(self.http) ? self.http.port : 8000) != (has(self.grpc) ? self.grpc.port : 9000)",
            lambda endpoint: endpoint.http.port != endpoint.grpc.port,
        ),
    )

    http: Port = setting(Port(port=8000), "HTTP listener.", change=Change.NEW_CLUSTER)
    grpc: Port = setting(Port(port=9000), "gRPC listener.", change=Change.NEW_CLUSTER)
    service: Service = Service()
    tls_secret_ref: TlsRef | None = setting(
        None,
        "Certificate of both listeners; the gateway reads a renewed certificate again.",
        change=Change.NEW_CLUSTER,
        auto="no TLS",
    )
    api_key_secret_ref: ApiKeyRef | None = setting(
        None,
        "Keys that requests must carry as `Authorization: Bearer`; the gateway reads changed keys again.",
        change=Change.NEW_CLUSTER,
        auto="every request is answered",
    )


class DeletionPolicy(StrEnum):
    DELETE = "Delete"
    ORPHAN = "Orphan"


_IS_EXTERNAL = "has(self.rayCluster) && has(self.rayCluster.external)"
_WAS_EXTERNAL = _IS_EXTERNAL.replace("self", "oldSelf")


def _mounted(at: str, cel: str, used: Callable[["Spec"], bool], what: str = "") -> Rule:
    """Requires managed mode for a field that is mounted into pods."""
    return Rule(
        f"{at[1:]}{what} is mounted into pods and requires rayCluster.managed",
        f"!({_IS_EXTERNAL} && {cel})",
        lambda spec: not (spec.ray_cluster.external is not None and used(spec)),
        at=at,
    )


class Spec(Section):
    """Desired state of a deployment."""

    RULES = (
        Rule(
            "rollout.strategy NewCluster requires rayCluster.managed",
            f"!({_IS_EXTERNAL} && has(self.rollout) && has(self.rollout.strategy)"
            " && self.rollout.strategy == 'NewCluster')",
            lambda spec: spec.ray_cluster.external is None or spec.rollout.strategy is not RolloutStrategy.NEW_CLUSTER,
            at=".rollout.strategy",
        ),
        Rule(
            "deletionPolicy Orphan requires rayCluster.external",
            f"!has(self.deletionPolicy) || self.deletionPolicy != 'Orphan' || ({_IS_EXTERNAL})",
            lambda spec: spec.deletion_policy is not DeletionPolicy.ORPHAN or spec.ray_cluster.external is not None,
            at=".deletionPolicy",
        ),
        _mounted(".model.secretRef", "has(self.model.secretRef)", lambda spec: spec.model.secret_ref is not None),
        _mounted(".model.cache", "has(self.model.cache)", lambda spec: spec.model.cache is not None),
        _mounted(
            ".model.uri",
            "self.model.uri.startsWith('pvc://')",
            lambda spec: spec.model.uri.startswith("pvc://"),
            " pvc://",
        ),
        _mounted(
            ".endpoint.tlsSecretRef",
            "has(self.endpoint) && has(self.endpoint.tlsSecretRef)",
            lambda spec: spec.endpoint.tls_secret_ref is not None,
        ),
        _mounted(
            ".endpoint.apiKeySecretRef",
            "has(self.endpoint) && has(self.endpoint.apiKeySecretRef)",
            lambda spec: spec.endpoint.api_key_secret_ref is not None,
        ),
    )
    TRANSITIONS = (
        Transition(
            "the Ray cluster cannot be changed between managed and external; delete and create the resource",
            f"({_IS_EXTERNAL}) == ({_WAS_EXTERNAL})",
            at=".rayCluster",
        ),
        # Otherwise ``kubectl scale`` would succeed without effect.
        Transition(
            "replicas has no effect beside autoscaling; change autoscaling.minReplicas and maxReplicas",
            "!has(self.autoscaling) || !has(oldSelf.autoscaling) || self.replicas == oldSelf.replicas",
            at=".replicas",
        ),
    )

    model: Model
    engine: Annotated[EngineSettings, BeforeValidator(without_nulls)] = EngineSettings()
    replicas: int = setting(
        1, "Number of engine replicas; without effect beside `autoscaling`.", change=Change.LIVE, ge=0, le=1024
    )
    autoscaling: Autoscaling | None = setting(
        None, "Engine replicas by load.", change=Change.LIVE, auto="`replicas`, always"
    )
    router: Router = Router()
    resources: Resources = setting(
        Resources(),
        "Resources of one engine replica; in external mode a change rolls the engines.",
        change=Change.NEW_CLUSTER,
        auto="2 CPUs and 4Gi in a pod, an equal share of the machine under `octavo up`",
    )
    ray_cluster: RayCluster = RayCluster()
    rollout: Rollout = Rollout()
    endpoint: Endpoint = Endpoint()
    suspend: bool = setting(False, "Stop serving and free the resources, and keep the resource.", change=Change.LIVE)
    deletion_policy: DeletionPolicy = setting(
        DeletionPolicy.DELETE,
        "Fate of the application when the resource is deleted. `Orphan` keeps it, in external mode only.",
        change=Change.LIVE,
        strict=False,
    )


class ServingDeployment(Section):
    """A served large language model: gateways with OpenAI's interface and gRPC, and engine replicas behind them."""

    api_version: Literal["serving.octavo.dev/v1alpha1"] = API_VERSION
    kind: Literal["ServingDeployment"] = KIND
    metadata: Metadata
    spec: Spec

    @model_validator(mode="before")
    @classmethod
    def _status(cls, values: Any) -> Any:
        """Ignore ``status``, which the operator writes, so that the output of ``kubectl get -o yaml`` can be read."""
        return (
            {name: value for name, value in values.items() if name != "status"} if isinstance(values, dict) else values
        )

    @property
    def served_name(self) -> str:
        return self.spec.model.served_name or self.metadata.name

    @property
    def external(self) -> External | None:
        return self.spec.ray_cluster.external

    @property
    def managed(self) -> Managed:
        """The managed cluster's section, or its defaults if the document has none."""
        return self.spec.ray_cluster.managed or Managed()

    @classmethod
    def read(
        cls,
        document: Mapping[str, Any],
        *,
        where: str = "ServingDeployment",
        typed: Mapping[tuple[int | str, ...], str] = MappingProxyType({}),
    ) -> Self:
        """Check a parsed document. Raise ``ConfigurationError`` with one line for each wrong field.

        ``typed`` names the fields that the user gave outside of the document, as the user typed them.
        """
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise ConfigurationError(explain(error, cls, where, typed)) from None

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read one YAML document from a file. Raise ``ConfigurationError``."""
        try:
            document = yaml.safe_load(path.read_text())
        except FileNotFoundError:
            raise ConfigurationError(f"{path}: no such file") from None
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigurationError(f"{path}: {error}") from None
        if not isinstance(document, dict):
            raise ConfigurationError(f"{path}: got {type(document).__name__}, allowed: one ServingDeployment")
        return cls.read(document, where=str(path))
