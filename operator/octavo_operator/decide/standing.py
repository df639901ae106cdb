"""What a Ray Serve has of our application, and whether ours must be put there."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from octavo_api.serve_config import ENGINE, GATEWAY
from octavo_operator.model.memory import Memory
from octavo_operator.model.observed import Application, Deployment, Reach, Serve
from octavo_operator.model.placement import INITIAL_REPLICAS, PATIENCE, PATIENCES, Mode, Place
from octavo_operator.model.spec_hash import digest

FIGHT_WINDOW_S = 600.0
FIGHT_COUNT = 3


class Standing(StrEnum):
    """Of our application in one Serve."""

    UNREACHED = "unreached"
    MISSING = "missing"
    FOREIGN = "foreign"
    """An application of our name that is not ours."""
    LEAVING = "leaving"
    OTHER = "other"
    """Ours, with another configuration."""
    CURRENT = "current"


class Why(StrEnum):
    """Why the application is put."""

    APPLIED = "applied"
    """The spec has changed, or it is the first time."""
    RESTORED = "restored"
    """Serve lost it."""
    CORRECTED = "corrected"
    """Somebody changed it, or left it out of what they put."""


@dataclass(frozen=True, slots=True)
class Serving:
    standing: Standing
    serve: Serve | None = None
    application: Application | None = None
    config_hash: str = ""
    """Of the configuration that is deployed, where it is ours."""

    @property
    def engines(self) -> Deployment | None:
        return self.application.deployments.get(ENGINE) if self.application else None

    @property
    def gateways(self) -> Deployment | None:
        return self.application.deployments.get(GATEWAY) if self.application else None

    @property
    def settled(self) -> bool:
        """Serve has our configuration and no roll of it is on."""
        return (
            self.standing is Standing.CURRENT and self.application is not None and self.application.status == "RUNNING"
        )

    @property
    def ours(self) -> bool:
        return self.standing in (Standing.LEAVING, Standing.OTHER, Standing.CURRENT)


@dataclass(frozen=True, slots=True)
class Put:
    """``corrections`` are the times of those of late, this one included."""

    why: Why | None
    corrections: tuple[float, ...]
    fight: bool


def look(serve: Serve | None, place: Place, memory: Memory, generation: int) -> Serving:
    """Judges what ``serve`` has. A configuration that was ours in this very generation stays ours, although a newer
    operator would write it differently: an upgrade changes no configuration."""
    # Managed clusters of another Ray are not blocked by that, so nothing may be planned on what they have.
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
    """Decides whether to put our application, and why; ``same_cluster`` is whether ``memory`` is about this Ray."""
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
    """Returns the same for what Serve was given and for what it says it was given: it turns ``2`` into ``2.0``, and
    may leave out, or write out, what is null or empty."""
    return digest(_canonical({**config, "deployments": _by_name(config.get("deployments"))}))


def _by_name(deployments: object) -> Any:
    if not isinstance(deployments, list):
        return deployments
    return {str(item.get("name")): _identity(item) for item in deployments if isinstance(item, Mapping)}


def _identity(deployment: Mapping[str, Any]) -> Mapping[str, Any]:
    """How many replicas it once started with, and that it was tried again, says nothing about what it is."""
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
