"""Observed state of the world before a plan: plain data, no clients, no clock.

``observe`` fills these types; ``plan`` reads only them. The operator keeps none of it between two reconciles, so a
restart of the operator changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple


class Key(NamedTuple):
    """Name of one ServingDeployment."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Resource:
    """A ServingDeployment as the API server has it. ``deleted_at`` is a Unix time, None if it is not being deleted."""

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
    """One of the deployment's RayClusters, as KubeRay reports it."""

    name: str
    uid: str
    spec_hash: str
    """Hash of the fields whose change needs a new cluster; from a label."""
    created_at: float
    deleting: bool
    head_ready: bool
    """KubeRay's condition ``HeadPodReady``."""
    message: str
    """KubeRay's description of a problem, empty if there is none."""
    image: str
    document: Mapping[str, Any]


class Reach(StrEnum):
    """Result of the operator's calls to a Ray dashboard."""

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
    """``deployed_app_config``: exactly the configuration that was put, None while Serve does not report it."""
    deployments: Mapping[str, Deployment] = field(default_factory=dict)
    missing_package: str = ""
    """The package of Octavo that this Ray could not import when it tried to build the application."""


@dataclass(frozen=True, slots=True)
class ServeState:
    """One Ray dashboard's answer to ``GET /api/serve/applications/``."""

    address: str
    reach: Reach
    message: str = ""
    """Reason that Ray was not reached; written by this operator, never a foreign body."""
    ray_version: str = ""
    applications: Mapping[str, Application] = field(default_factory=dict)
    proxy_url: str | None = None
    """Base address of Serve's own HTTP proxy, if one runs."""
    listeners: tuple[str, ...] = ()
    """In external mode: base addresses of the gateways' own listeners, ``http://HOST:PORT`` and ``grpc://HOST:PORT``."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that a plan for one deployment depends on, except its own resource and the time."""

    namespace_terminating: bool = False
    kuberay_installed: bool = True
    clusters: tuple[Cluster, ...] = ()
    serve: Mapping[str, ServeState] = field(default_factory=dict)
    """Answers by address: of the external Ray, or of each cluster whose head is ready."""
    children: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    """Objects by kind and name: Service, PodDisruptionBudget, Secret (metadata and keys only, no values),
    NetworkPolicy."""
    missing_secrets: tuple[str, ...] = ()
    """Secrets that the spec names and that do not exist: ``NAME``, or ``NAME/KEY`` if only the key is missing."""
    missing_claims: tuple[str, ...] = ()
    foreign: tuple[tuple[str, str], ...] = ()
    """Kind and name of objects in the way: the spec needs objects of these names, and these have another owner."""
    ready_gateways: int = 0
    """Ready endpoints behind the Service, managed mode only."""
