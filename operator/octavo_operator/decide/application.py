"""Standing of our application in a Ray Serve, and the decision to put it there."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from octavo_api.serve_config import ENGINE, GATEWAY
from octavo_operator.model.desired import INITIAL_REPLICAS, PATIENCE, PATIENCES, Mode, Place
from octavo_operator.model.memory import Memory
from octavo_operator.model.observed import Application, Deployment, Reach, Serve
from octavo_operator.model.spec_hash import digest

FIGHT_WINDOW_S = 600.0
FIGHT_COUNT = 3


class Standing(StrEnum):
    """Standing of our application in one Serve."""

    UNREACHED = "unreached"
    MISSING = "missing"
    FOREIGN = "foreign"
    """An application of our name with another owner."""
    LEAVING = "leaving"
    OTHER = "other"
    """Our application, with another configuration."""
    CURRENT = "current"


class Why(StrEnum):
    """Reason to put the application."""

    APPLIED = "applied"
    """The spec has changed, or this is the first put."""
    RESTORED = "restored"
    """Serve lost the application."""
    CORRECTED = "corrected"
    """Another client changed the application, or left it out of its own put."""


@dataclass(frozen=True, slots=True)
class Serving:
    standing: Standing
    serve: Serve | None = None
    application: Application | None = None
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
        return (
            self.standing is Standing.CURRENT and self.application is not None and self.application.status == "RUNNING"
        )

    @property
    def ours(self) -> bool:
        return self.standing in (Standing.LEAVING, Standing.OTHER, Standing.CURRENT)


@dataclass(frozen=True, slots=True)
class Put:
    """Decision about a put. ``why`` is None if nothing is put.

    ``corrections`` are the Unix times of the recent corrections, including this one.
    """

    why: Why | None
    corrections: tuple[float, ...]
    fight: bool


def look(serve: Serve | None, place: Place, memory: Memory, generation: int) -> Serving:
    """Judge our application in ``serve``.

    A configuration that was ours in this very generation stays ours, even if a newer operator would write it
    differently. So an upgrade of the operator changes no configuration.
    """
    # Another Ray version does not block a managed deployment, so no plan may build on the contents of such a cluster.
    read = serve is not None and (
        serve.reach is Reach.OK
        or (serve.reach is Reach.INCOMPATIBLE and bool(serve.ray_version) and place.mode is not Mode.MANAGED)
    )
    if serve is None or not read:
        return Serving(Standing.UNREACHED, serve)
    application = serve.applications.get(place.name)
    if application is None:
        return Serving(Standing.MISSING, serve)
    if application.config is None and application.status == "DELETING":
        return Serving(Standing.LEAVING, serve, application)
    if owner_of(application) != place.owner:
        return Serving(Standing.FOREIGN, serve, application)
    deployed = config_hash(application.config or {})
    if application.status == "DELETING":
        return Serving(Standing.LEAVING, serve, application, deployed)
    kept = deployed == memory.config_hash and generation == memory.config_generation
    current = kept or deployed == config_hash(place.application)
    return Serving(Standing.CURRENT if current else Standing.OTHER, serve, application, deployed)


def decide(serving: Serving, memory: Memory, generation: int, now: float, *, same_cluster: bool) -> Put:
    """Decide if our application must be put, with the reason. ``same_cluster``: ``memory`` is about this Ray."""
    recent = tuple(at for at in memory.corrections if now - at < FIGHT_WINDOW_S)
    seen = same_cluster and bool(memory.config_hash) and memory.config_generation == generation
    fight = len(recent) >= FIGHT_COUNT
    if serving.standing not in (Standing.MISSING, Standing.OTHER):
        return Put(None, recent, fight)
    if not seen:
        return Put(Why.APPLIED, recent, fight)
    lost = serving.standing is Standing.MISSING and not (serving.serve and serving.serve.applications)
    if lost:
        return Put(Why.RESTORED, recent, fight)
    if fight:
        return Put(None, recent, fight)
    return Put(Why.CORRECTED, (*recent, now), len(recent) + 1 >= FIGHT_COUNT)


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
    if same.get(PATIENCE) in PATIENCES:
        same[PATIENCE] = PATIENCES[0]
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
