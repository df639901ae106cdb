"""``ServingDeployment``: the one document that describes what is served, in Kubernetes and by ``octavo up -f``.

Fields are lowerCamelCase in documents. Each says its unit, its default, and what a change of it does.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from octavo_api.errors import ConfigurationError
from octavo_api.settings import Bytes, Change, EngineSettings, RouterSettings, explain, setting

API_VERSION: Literal["serving.octavo.dev/v1alpha1"] = "serving.octavo.dev/v1alpha1"
KIND: Literal["ServingDeployment"] = "ServingDeployment"

FINALIZER = "serving.octavo.dev/operator"
"""On deployments in external mode only: the operator takes the application out of a Ray that it does not own."""

_SCHEMES = ("embedded://", "hf://", "pvc://", "file://")
_CPUS = re.compile(r"([0-9]+)m|([0-9]+(?:\.[0-9]+)?)")
_OBJECT_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"

Passthrough = dict[str, Any]
"""An object of Kubernetes or KubeRay that is handed on as it is; the API server checks it where it arrives."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


def _uri(value: str) -> str:
    if not value.startswith(_SCHEMES):
        raise ValueError(f"must start with one of {', '.join(_SCHEMES)}")
    return value


def parse_cpus(value: object) -> object:
    """Turns a Kubernetes CPU quantity (``2``, ``1500m``) into a number of CPUs."""
    if not isinstance(value, str):
        return value
    if (match := _CPUS.fullmatch(value.strip())) is None:
        raise ValueError("must be a number of CPUs or a quantity like 2 or 1500m")
    return int(match[1]) / 1000 if match[1] else float(match[2])


Cpus = Annotated[
    float,
    BeforeValidator(parse_cpus, json_schema_input_type=float | Annotated[str, Field(pattern=f"^({_CPUS.pattern})$")]),
]
"""A number, or a string like ``1500m``."""


class Metadata(BaseModel):
    """Kubernetes' object metadata; what a cluster adds beside these fields is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(max_length=40, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
    namespace: str = "default"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class SecretKeyRef(_Section):
    """One key of a Secret in the deployment's namespace."""

    name: str = Field(min_length=1, max_length=253, pattern=_OBJECT_NAME, description="Name of the Secret.")
    key: str = Field(min_length=1, max_length=253, description="Key in the Secret.")


class TokenRef(SecretKeyRef):
    key: str = Field("HF_TOKEN", min_length=1, max_length=253, description="Key in the Secret.")


class ApiKeyRef(SecretKeyRef):
    key: str = Field("api-keys", min_length=1, max_length=253, description="Key in the Secret: one API key a line.")


class RayTokenRef(SecretKeyRef):
    key: str = Field("auth_token", min_length=1, max_length=253, description="Key in the Secret.")


class TlsRef(_Section):
    """A Secret of type ``kubernetes.io/tls``: ``tls.crt`` and ``tls.key``."""

    name: str = Field(min_length=1, max_length=253, pattern=_OBJECT_NAME, description="Name of the Secret.")


class ClaimRef(_Section):
    claim_name: str = Field(
        min_length=1,
        max_length=253,
        pattern=_OBJECT_NAME,
        description="A PersistentVolumeClaim that all pods can mount.",
    )


class Model(_Section):
    uri: Annotated[str, AfterValidator(_uri)] = setting(
        ...,
        "Where the model is: `embedded://smollm2`, `hf://ORGANISATION/NAME`, `pvc://CLAIM/PATH` in a claim of the "
        "namespace, or `file:///PATH` in the replica's file system; PATH is a folder or a `.gguf` file.",
        change=Change.ROLLING,
        max_length=2048,
    )
    revision: str | None = setting(
        None, "Commit, tag or branch of a `hf://` model.", change=Change.ROLLING, auto="main", max_length=128
    )
    served_name: str | None = setting(
        None, "The model's name in requests.", change=Change.LIVE, auto="metadata.name", max_length=253
    )
    secret_ref: TokenRef | None = setting(
        None,
        "Access token of a `hf://` model. A rotated token counts from the next start of a replica.",
        change=Change.NEW_CLUSTER,
        auto="none",
    )
    cache: ClaimRef | None = setting(
        None,
        "Where downloaded models are kept, shared by all replicas.",
        change=Change.NEW_CLUSTER,
        auto="the pod's own disk, gone with it",
    )


class ResourceList(_Section):
    cpu: Cpus | None = Field(None, gt=0, description="CPUs.")
    memory: Bytes | None = Field(None, gt=0, description="Bytes.")


class Resources(_Section):
    limits: ResourceList = Field(ResourceList(), description="What one replica may take.")
    requests: ResourceList = Field(ResourceList(), description="What one replica is sure of; without it its limits.")


class Autoscaling(_Section):
    """Scales engine replicas by the requests that run and wait, and by the cache that they hold."""

    min_replicas: int = setting(
        1, "Fewest engine replicas; at 0 the gateway holds requests until one is up.", change=Change.LIVE, ge=0, le=1024
    )
    max_replicas: int = setting(..., "Most engine replicas.", change=Change.LIVE, ge=1, le=1024)
    target_requests: int = setting(
        32, "Requests, running and waiting, that one replica should have.", change=Change.LIVE, ge=1, le=2**20
    )
    target_cache_percent: int = setting(
        80,
        "Share of a replica's KV cache that running requests should hold; what could be evicted does not count.",
        change=Change.LIVE,
        unit="percent",
        ge=1,
        le=100,
    )
    upscale_delay_seconds: int = setting(
        10,
        "How long more replicas must be wanted before they are started.",
        change=Change.LIVE,
        unit="seconds",
        ge=0,
        le=86400,
    )
    downscale_delay_seconds: int = setting(
        300,
        "How long fewer replicas must be wanted before some are stopped.",
        change=Change.LIVE,
        unit="seconds",
        ge=0,
        le=86400,
    )
    downscale_to_zero_delay_seconds: int = setting(
        1800,
        "How long nothing must be asked before the last replica is stopped.",
        change=Change.LIVE,
        unit="seconds",
        ge=0,
        le=86400,
    )

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError("minReplicas must not exceed maxReplicas")
        return self


class Router(RouterSettings):
    replicas: int = setting(1, "Number of gateways.", change=Change.LIVE, ge=1, le=64)
    resources: Resources = setting(
        Resources(), "Of one gateway's pod.", change=Change.NEW_CLUSTER, auto="1 CPU and 1Gi", strict=False
    )


class RolloutStrategy(StrEnum):
    IN_PLACE = "InPlace"
    NEW_CLUSTER = "NewCluster"


class Rollout(_Section):
    strategy: RolloutStrategy = setting(
        RolloutStrategy.IN_PLACE,
        "How a field that needs a new cluster is changed: `InPlace` stops the old one first and interrupts service, "
        "`NewCluster` starts the new one beside it, needs double capacity and cuts nothing.",
        change=Change.LIVE,
    )
    drain_seconds: int = setting(
        600,
        "Longest time that a replica may take to end its streams before it is stopped.",
        change=Change.LIVE,
        unit="seconds",
        ge=0,
        le=3600,
    )
    progress_deadline_seconds: int = setting(
        1800,
        "Longest time without progress before the deployment is reported as stalled; it is tried on.",
        change=Change.LIVE,
        unit="seconds",
        ge=1,
        le=86400,
    )


class Port(_Section):
    port: int = Field(ge=1, le=65535, description="TCP port.")


class ServiceType(StrEnum):
    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class Service(_Section):
    type: ServiceType = setting(ServiceType.CLUSTER_IP, "Type of the Service.", change=Change.LIVE)
    annotations: dict[str, str] = setting({}, "Annotations of the Service.", change=Change.LIVE)


class Endpoint(_Section):
    http: Port = setting(Port(port=8000), "HTTP listener.", change=Change.NEW_CLUSTER)
    grpc: Port = setting(Port(port=9000), "gRPC listener.", change=Change.NEW_CLUSTER)
    service: Service = Service()
    tls_secret_ref: TlsRef | None = setting(
        None, "Certificate of both listeners; a renewed one is read again.", change=Change.NEW_CLUSTER, auto="no TLS"
    )
    api_key_secret_ref: ApiKeyRef | None = setting(
        None,
        "Keys that requests must carry as `Authorization: Bearer`; changed keys are read again.",
        change=Change.NEW_CLUSTER,
        auto="every request is answered",
    )

    @model_validator(mode="after")
    def _two_ports(self) -> Self:
        if self.http.port == self.grpc.port:
            raise ValueError("http.port and grpc.port must differ")
        return self


class Head(_Section):
    resources: Resources = setting(Resources(), "Of the head pod.", change=Change.NEW_CLUSTER, auto="1 CPU and 2Gi")


class Managed(_Section):
    """A ``RayCluster`` of the deployment's own, by KubeRay. All fields but ``networkPolicy`` need a new cluster."""

    image: str | None = setting(
        None,
        "Image with Octavo and Ray, of head, gateways and engines.",
        change=Change.NEW_CLUSTER,
        auto="the operator's default when the cluster is made, kept until spec changes",
        min_length=1,
        max_length=512,
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = setting(
        None, "Of all pods.", change=Change.NEW_CLUSTER, auto="Kubernetes' rule by tag"
    )
    image_pull_secrets: list[Passthrough] = setting([], "Of all pods.", change=Change.NEW_CLUSTER, max_length=16)
    head: Head = Head()
    service_account_name: str | None = setting(
        None, "Of gateway and engine pods.", change=Change.NEW_CLUSTER, auto="the namespace's default", max_length=253
    )
    priority_class_name: str | None = setting(
        None,
        "Of all pods; a request's own priority is another matter.",
        change=Change.NEW_CLUSTER,
        auto="none",
        max_length=253,
    )
    runtime_class_name: str | None = setting(
        None, "Of engine pods.", change=Change.NEW_CLUSTER, auto="none", max_length=253
    )
    node_selector: dict[str, str] = setting({}, "Of engine pods.", change=Change.NEW_CLUSTER)
    tolerations: list[Passthrough] = setting([], "Of engine pods.", change=Change.NEW_CLUSTER, max_length=64)
    affinity: Passthrough | None = setting(None, "Of engine pods.", change=Change.NEW_CLUSTER, auto="none")
    topology_spread_constraints: list[Passthrough] = setting(
        [], "Of engine pods.", change=Change.NEW_CLUSTER, max_length=16
    )
    env: list[Passthrough] = setting(
        [], "Further environment variables of all pods.", change=Change.NEW_CLUSTER, max_length=128
    )
    volumes: list[Passthrough] = setting([], "Further volumes of all pods.", change=Change.NEW_CLUSTER, max_length=64)
    volume_mounts: list[Passthrough] = setting(
        [], "Further mounts of all pods' Ray container.", change=Change.NEW_CLUSTER, max_length=64
    )
    gcs_fault_tolerance: Passthrough | None = setting(
        None,
        "KubeRay's `gcsFaultToleranceOptions`, as they are: with a Redis a lost head cuts no stream.",
        change=Change.NEW_CLUSTER,
        auto="none",
    )
    network_policy: bool = setting(
        False, "Let only the operator and the cluster's own pods reach Ray's ports.", change=Change.LIVE
    )


class External(_Section):
    """A Ray cluster that somebody else runs, with this version of Octavo in its environment."""

    dashboard_url: str = setting(
        ...,
        "Address of Ray's dashboard, `http://HOST:8265`.",
        change=Change.IMMUTABLE,
        alias="dashboardURL",
        max_length=2048,
        pattern=r"^https?://[^/?#\s@]+/?$",
    )
    auth_secret_ref: RayTokenRef | None = setting(
        None, "Ray's token; read at each use.", change=Change.LIVE, auto="no token is sent"
    )


class RayCluster(_Section):
    managed: Managed | None = setting(
        None, "Through KubeRay.", change=Change.IMMUTABLE, auto="managed, unless `external` is given"
    )
    external: External | None = setting(None, "By address.", change=Change.IMMUTABLE, auto="none")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.managed is not None and self.external is not None:
            raise ValueError("managed and external exclude each other")
        return self


class DeletionPolicy(StrEnum):
    DELETE = "Delete"
    ORPHAN = "Orphan"


class Spec(_Section):
    model: Model
    engine: EngineSettings = EngineSettings()
    replicas: int = setting(
        1, "Number of engine replicas; without effect beside `autoscaling`.", change=Change.LIVE, ge=0, le=1024
    )
    autoscaling: Autoscaling | None = setting(
        None, "Engine replicas by load.", change=Change.LIVE, auto="`replicas`, always"
    )
    router: Router = Router()
    resources: Resources = setting(
        Resources(),
        "Of one engine replica; in external mode a change rolls the engines.",
        change=Change.NEW_CLUSTER,
        auto="2 CPUs and 4Gi in a pod, an equal share of the machine under `octavo up`",
    )
    ray_cluster: RayCluster = RayCluster()
    rollout: Rollout = Rollout()
    endpoint: Endpoint = Endpoint()
    suspend: bool = setting(False, "Stop serving and free the resources, and keep the resource.", change=Change.LIVE)
    deletion_policy: DeletionPolicy = setting(
        DeletionPolicy.DELETE,
        "Whether the application goes with the resource; `Orphan` leaves it, in external mode only.",
        change=Change.LIVE,
    )

    @model_validator(mode="after")
    def _fits_the_mode(self) -> Self:
        external = self.ray_cluster.external is not None
        if external and self.rollout.strategy is RolloutStrategy.NEW_CLUSTER:
            raise ValueError("rollout.strategy NewCluster needs rayCluster.managed")
        if not external and self.deletion_policy is DeletionPolicy.ORPHAN:
            raise ValueError("deletionPolicy Orphan needs rayCluster.external")
        needs_pods = {
            "model.secretRef": self.model.secret_ref,
            "model.cache": self.model.cache,
            "endpoint.tlsSecretRef": self.endpoint.tls_secret_ref,
            "endpoint.apiKeySecretRef": self.endpoint.api_key_secret_ref,
        }
        if external and (found := [name for name, value in needs_pods.items() if value is not None]):
            raise ValueError(f"{', '.join(found)}: mounted into pods, so they need rayCluster.managed")
        if external and self.model.uri.startswith("pvc://"):
            raise ValueError("model.uri pvc:// is mounted into pods, so it needs rayCluster.managed")
        if self.model.revision is not None and not self.model.uri.startswith("hf://"):
            raise ValueError("model.revision needs a hf:// model")
        return self


class ServingDeployment(_Section):
    api_version: Literal["serving.octavo.dev/v1alpha1"] = API_VERSION
    kind: Literal["ServingDeployment"] = KIND
    metadata: Metadata
    spec: Spec

    @property
    def served_name(self) -> str:
        return self.spec.model.served_name or self.metadata.name

    @property
    def external(self) -> External | None:
        return self.spec.ray_cluster.external

    @property
    def managed(self) -> Managed:
        """The managed cluster's section; what it says by default where the document has none."""
        return self.spec.ray_cluster.managed or Managed()

    @classmethod
    def read(cls, document: Mapping[str, Any], *, where: str = "ServingDeployment") -> Self:
        """Checks a parsed document; raises ``ConfigurationError`` with one line per wrong field."""
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise ConfigurationError(explain(error, cls, where)) from None

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads one YAML document from a file; raises ``ConfigurationError``."""
        try:
            document = yaml.safe_load(path.read_text())
        except FileNotFoundError:
            raise ConfigurationError(f"{path}: no such file") from None
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigurationError(f"{path}: {error}") from None
        if not isinstance(document, dict):
            raise ConfigurationError(f"{path}: got {type(document).__name__}, allowed: one ServingDeployment mapping")
        return cls.read(document, where=str(path))
