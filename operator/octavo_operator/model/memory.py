"""Facts that one plan leaves for the next. They are read from ``status``, never kept in the operator's own memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from octavo_operator.model.conditions import Condition, State


@dataclass(frozen=True, slots=True)
class LastError:
    """The last failure that the status reported."""

    reason: str
    message: str
    since: float
    """Unix time at which the failure first occurred, or was last retried."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Facts from the last status.

    The status may be missing, or another client may have written it. Unreadable parts count as absent.
    """

    conditions: Mapping[str, Condition] = field(default_factory=dict)
    """Conditions of the last round, by type."""
    config_hash: str = ""
    """Hash of our configuration that Serve last reported, empty if Serve never reported one."""
    config_generation: int = 0
    """Generation of the deployment that this configuration belongs to."""
    cluster: str = ""
    """RayCluster that was active, and that this configuration is in. Empty in external mode."""
    pending_hash: str = ""
    """Spec hash of the cluster that was to replace the active one. If it is set, an Event has announced it."""
    draining: Mapping[str, float] = field(default_factory=dict)
    """Clusters that are being stopped, with the Unix time of the start."""
    corrections: tuple[float, ...] = ()
    """Unix times of recent corrections of another client's configuration."""
    progress: str = ""
    """Stage of the deployment in the last round, empty at rest. Another text is progress."""
    progress_at: float | None = None
    """Unix time at which the deployment reached this stage."""
    last_error: LastError | None = None


def read_status(status: Mapping[str, Any]) -> Memory:
    """Read the facts from a status, whatever it contains."""
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
    )


def time_of(value: object) -> float | None:
    """Read an RFC 3339 time as Unix time; None if it is none."""
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
