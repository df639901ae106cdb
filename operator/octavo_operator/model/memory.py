"""What one plan tells the next: read from ``status``, so that nothing is kept in the operator's own memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from octavo_operator.model.conditions import Condition, State


@dataclass(frozen=True, slots=True)
class LastError:
    reason: str
    message: str
    since: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Of a status that is missing, or that somebody else wrote, what cannot be read is as if it had not been."""

    conditions: Mapping[str, Condition] = field(default_factory=dict)
    config_hash: str = ""
    """Of the configuration that Serve was last seen to have from us, and in which generation, on which cluster."""
    config_generation: int = 0
    cluster: str = ""
    pending_hash: str = ""
    draining: Mapping[str, float] = field(default_factory=dict)
    """Clusters that are being stopped, and since when."""
    corrections: tuple[float, ...] = ()
    """When somebody else's configuration was set back, of late."""
    progress: str = ""
    """What the last progress was, and when."""
    progress_at: float | None = None
    last_error: LastError | None = None
    served: bool = False
    """Whether this cluster, or this Ray, was ever seen to run our application."""


def read(status: Mapping[str, Any]) -> Memory:
    cluster = _map(status.get("rayCluster"))
    progress = _map(status.get("progress"))
    error = _map(status.get("lastError"))
    config_hash = str(status.get("configHash") or "")
    draining = ((_map(item).get("name"), time_of(_map(item).get("since"))) for item in _list(cluster.get("draining")))
    corrections = (time_of(item) for item in _list(status.get("driftCorrections")))
    since = time_of(error.get("since"))
    return Memory(
        conditions={item["type"]: _condition(item) for item in _list(status.get("conditions")) if _readable(item)},
        config_hash=config_hash,
        config_generation=_int(status.get("configGeneration")),
        cluster=str(cluster.get("name") or ""),
        pending_hash=str(cluster.get("pendingHash") or ""),
        draining={str(name): at for name, at in draining if name and at is not None},
        corrections=tuple(at for at in corrections if at is not None),
        progress=str(progress.get("state") or ""),
        progress_at=time_of(progress.get("since")),
        last_error=LastError(str(error.get("reason", "")), str(error.get("message", "")), since) if since else None,
        served=bool(config_hash),
    )


def time_of(value: object) -> float | None:
    """Reads RFC 3339; None where it is none."""
    if not isinstance(value, str):
        return None
    try:
        return datetime.fromisoformat(value).timestamp()
    except ValueError:
        return None


def rfc3339(at: float) -> str:
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(item: Mapping[str, Any]) -> Condition:
    return Condition(
        type=str(item["type"]),
        state=State(item["status"]),
        reason=str(item.get("reason", "")),
        message=str(item.get("message", "")),
        generation=_int(item.get("observedGeneration")),
        since=time_of(item.get("lastTransitionTime")),
    )


def _readable(item: object) -> bool:
    return isinstance(item, Mapping) and "type" in item and item.get("status") in tuple(State)


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
