"""Sync state of our application in a Ray Serve, and the decision to deploy it there."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from octavo_api.resource.serve_config import ENGINE, GATEWAY
from octavo_operator.model.conditions import Reason
from octavo_operator.model.desired import (
    HEALTH_CHECK_TIMEOUT,
    HEALTH_CHECK_TIMEOUTS_S,
    INITIAL_REPLICAS,
    DesiredApplication,
    Mode,
)
from octavo_operator.model.memory import Memory
from octavo_operator.model.observed import Application, Deployment, Reach, ServeState
from octavo_operator.model.spec_hash import digest

FIGHT_WINDOW_S = 600.0
FIGHT_COUNT = 3
"""Maximum number of corrections within ``FIGHT_WINDOW_S``. Then another client fights the operator."""
DEPLOY_RETRY_S = 300.0
"""Seconds between retries of a deployment that Serve has given up."""


class SyncState(StrEnum):
    """Our application in one Serve, compared with the desired one."""

    UNKNOWN = "unknown"
    """Serve does not answer, or its contents do not count."""
    MISSING = "missing"
    FOREIGN = "foreign"
    """Serve has an application of our name with another owner."""
    DELETING = "deleting"
    OUTDATED = "outdated"
    """Serve has our application with another configuration."""
    CURRENT = "current"


class DeployReason(StrEnum):
    """Reason to deploy the application."""

    SPEC_CHANGED = "spec-changed"
    """The spec has changed, or nothing was deployed yet."""
    LOST = "lost"
    """Serve restarted without any application."""
    DRIFTED = "drifted"
    """Another client changed the application, or left it out of its own PUT."""


@dataclass(frozen=True, slots=True)
class ApplicationView:
    """Our application in one Serve, as this round observed it."""

    sync: SyncState
    serve: ServeState | None = None
    """Answer of the Serve. None if the operator did not call it, because no head is ready."""
    application: Application | None = None
    """The application of our name, also if it is foreign."""
    config_hash: str = ""
    """Hash of the deployed configuration, if the application is ours."""

    @property
    def engines(self) -> Deployment | None:
        return self.application.deployments.get(ENGINE) if self.application else None

    @property
    def gateways(self) -> Deployment | None:
        return self.application.deployments.get(GATEWAY) if self.application else None

    @property
    def settled(self) -> bool:
        """Return True if Serve has our configuration and no roll of it is in progress."""
        return self.sync is SyncState.CURRENT and self.application is not None and self.application.status == "RUNNING"

    @property
    def ours(self) -> bool:
        return self.sync in (SyncState.DELETING, SyncState.OUTDATED, SyncState.CURRENT)


@dataclass(frozen=True, slots=True)
class DeployDecision:
    """Decision of one round about a deploy."""

    reason: DeployReason | None
    """Reason to deploy, None if there is none."""
    corrections: tuple[float, ...]
    """Unix times of the recent corrections, including this one."""
    drift_fight: bool
    """True if another client changes the application as often as the operator reverts it."""


def view_application(
    serve: ServeState | None, desired: DesiredApplication, memory: Memory, generation: int
) -> ApplicationView:
    """Compare our application in ``serve`` with the desired one.

    A configuration that was ours in this very generation stays ours, even if a newer operator would write it
    differently. So an upgrade of the operator changes no configuration.
    """
    # Another Ray version does not block a managed deployment, so no plan may build on the contents of such a cluster.
    readable = serve is not None and (
        serve.reach is Reach.OK
        or (serve.reach is Reach.INCOMPATIBLE and bool(serve.ray_version) and desired.mode is not Mode.MANAGED)
    )
    if serve is None or not readable:
        return ApplicationView(SyncState.UNKNOWN, serve)
    application = serve.applications.get(desired.name)
    if application is None:
        return ApplicationView(SyncState.MISSING, serve)
    if application.config is None and application.status == "DELETING":
        return ApplicationView(SyncState.DELETING, serve, application)
    if owner_of(application) != desired.owner:
        return ApplicationView(SyncState.FOREIGN, serve, application)
    deployed = config_hash(application.config or {})
    if application.status == "DELETING":
        return ApplicationView(SyncState.DELETING, serve, application, deployed)
    kept = deployed == memory.config_hash and generation == memory.config_generation
    current = kept or deployed == config_hash(desired.config)
    return ApplicationView(SyncState.CURRENT if current else SyncState.OUTDATED, serve, application, deployed)


def decide_deploy(
    view: ApplicationView, memory: Memory, generation: int, now: float, *, same_cluster: bool
) -> DeployDecision:
    """Decide if our application must be deployed. ``same_cluster``: ``memory`` is about the Ray of ``view``."""
    recent = tuple(at for at in memory.corrections if now - at < FIGHT_WINDOW_S)
    deployed_before = same_cluster and bool(memory.config_hash) and memory.config_generation == generation
    drift_fight = len(recent) >= FIGHT_COUNT
    if view.sync not in (SyncState.MISSING, SyncState.OUTDATED):
        return DeployDecision(None, recent, drift_fight)
    if not deployed_before:
        return DeployDecision(DeployReason.SPEC_CHANGED, recent, drift_fight)
    lost = view.sync is SyncState.MISSING and not (view.serve and view.serve.applications)
    if lost:
        return DeployDecision(DeployReason.LOST, recent, drift_fight)
    if drift_fight:
        return DeployDecision(None, recent, drift_fight)
    return DeployDecision(DeployReason.DRIFTED, (*recent, now), len(recent) + 1 >= FIGHT_COUNT)


def retry_due(view: ApplicationView, memory: Memory, now: float) -> bool:
    """Return True if a retry of a failed deployment is due, because the reason may lie outside the spec."""
    if view.sync is not SyncState.CURRENT or view.application is None or view.application.status != "DEPLOY_FAILED":
        return False
    last = memory.last_error
    return last is not None and last.reason == Reason.DEPLOY_FAILED and now - last.since >= DEPLOY_RETRY_S


def owner_of(application: Application) -> str | None:
    arguments = (application.config or {}).get("args")
    owner = arguments.get("owner") if isinstance(arguments, Mapping) else None
    return owner if isinstance(owner, str) else None


def config_hash(config: Mapping[str, Any]) -> str:
    """Return an equal hash for the configuration that Serve received and for Serve's report of it.

    Serve turns ``2`` into ``2.0``. It may leave out, or write out, null and empty values.
    """
    return digest(_canonical({**config, "deployments": _by_name(config.get("deployments"))}))


def _by_name(deployments: object) -> Any:
    if not isinstance(deployments, list):
        return deployments
    return {str(item.get("name")): _identity(item) for item in deployments if isinstance(item, Mapping)}


def _identity(deployment: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the deployment in a form that is equal for all its retries and initial replicas.

    Neither the initial number of replicas nor the mark of a retry belongs to its identity.
    """
    same = dict(deployment)
    if same.get(HEALTH_CHECK_TIMEOUT) in HEALTH_CHECK_TIMEOUTS_S:
        same[HEALTH_CHECK_TIMEOUT] = HEALTH_CHECK_TIMEOUTS_S[0]
    if isinstance(scaling := same.get("autoscaling_config"), Mapping):
        same["autoscaling_config"] = {name: value for name, value in scaling.items() if name != INITIAL_REPLICAS}
    return same


def _canonical(value: Any) -> Any:
    match value:
        case bool():
            return value
        case float() if value.is_integer():
            return int(value)
        case Mapping():
            members = {str(name): _canonical(item) for name, item in value.items()}
            return {name: item for name, item in members.items() if item is not None and item not in ({}, [])}
        case list() | tuple():
            return [_canonical(item) for item in value]
    return value
