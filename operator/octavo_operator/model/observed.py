"""What the operator sees of the world before it plans: plain data, no clients, no clock.

``observe`` fills these; ``plan`` reads them and nothing else. Nothing of it is kept in memory between two reconciles,
so a restart of the operator changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple


class Key(NamedTuple):
    """Names one ServingDeployment."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Resource:
    """A ServingDeployment as the API server has it. ``deleted_at`` is a Unix time, None while it is to stay."""

    key: Key
    uid: str
    generation: int
    resource_version: str
    created_at: float
    deleted_at: float | None
    finalizers: tuple[str, ...]
    annotations: Mapping[str, str]
    document: Mapping[str, Any]
    """The whole object."""
    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cluster:
    """One of the deployment's RayClusters, by KubeRay's own word."""

    name: str
    uid: str
    spec_hash: str
    """Of what a change of needs a new cluster; from a label."""
    created_at: float
    deleting: bool
    head_ready: bool
    """KubeRay's condition ``HeadPodReady``."""
    message: str
    """What KubeRay says is wrong, empty where nothing is."""
    image: str
    document: Mapping[str, Any]


class Reach(StrEnum):
    """How far the operator got at a Ray dashboard."""

    OK = "Ok"
    UNREACHABLE = "Unreachable"
    """No answer, a server error, or no answer in time: nothing is known, the data plane may well serve."""
    AUTH_FAILED = "AuthFailed"
    INCOMPATIBLE = "Incompatible"
    """Another Ray version, no Serve in it, or no Octavo that can be imported."""


@dataclass(frozen=True, slots=True)
class Replica:
    """``state`` is Serve's word: STARTING, UPDATING, RECOVERING, RUNNING, STOPPING, PENDING_MIGRATION."""

    replica_id: str
    state: str
    actor_id: str | None = None
    node_ip: str | None = None
    log: str | None = None
    """Serve's ``log_file_path``."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """``status`` is Serve's word: UPDATING, HEALTHY, UNHEALTHY, DEPLOY_FAILED, UPSCALING, DOWNSCALING."""

    name: str
    status: str
    target: int
    replicas: tuple[Replica, ...] = ()
    message: str = ""

    @property
    def running(self) -> int:
        return sum(replica.state == "RUNNING" for replica in self.replicas)


@dataclass(frozen=True, slots=True)
class Application:
    """``status`` is Serve's word: NOT_STARTED, DEPLOYING, DEPLOY_FAILED, RUNNING, UNHEALTHY, DELETING."""

    name: str
    status: str
    message: str = ""
    config: Mapping[str, Any] | None = None
    """``deployed_app_config``: exactly what was put, None while Serve does not say."""
    deployments: Mapping[str, Deployment] = field(default_factory=dict)
    missing_package: str = ""
    """The package of Octavo that this Ray could not import when it tried to build the application."""


@dataclass(frozen=True, slots=True)
class Serve:
    """One Ray dashboard's answer to ``GET /api/serve/applications/``."""

    address: str
    reach: Reach
    message: str = ""
    """Why it was not reached; written by this operator, never a foreign body."""
    ray_version: str = ""
    applications: Mapping[str, Application] = field(default_factory=dict)
    proxy_url: str | None = None
    """Base address of Serve's own HTTP proxy, where one runs."""
    doors: tuple[str, ...] = ()
    """In external mode: base addresses of the gateways' own listeners, ``http://HOST:PORT`` and ``grpc://HOST:PORT``."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that a plan for one deployment depends on, but its own resource and the time."""

    namespace_terminating: bool = False
    kuberay_installed: bool = True
    clusters: tuple[Cluster, ...] = ()
    serve: Mapping[str, Serve] = field(default_factory=dict)
    """By address: the external one, or that of each cluster whose head is ready."""
    children: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    """By kind and name: Service, PodDisruptionBudget, Secret (metadata and keys only, no values), NetworkPolicy."""
    missing_secrets: tuple[str, ...] = ()
    """Of the Secrets that the spec names: ``NAME`` or ``NAME/KEY``, where it or its key does not exist."""
    missing_claims: tuple[str, ...] = ()
    foreign: tuple[tuple[str, str], ...] = ()
    """Kind and name of objects in the way: the spec asks for ones of these names, and these are somebody else's."""
    ready_gateways: int = 0
    """Ready endpoints behind the Service, managed mode only."""
