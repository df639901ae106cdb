"""Reads Serve's details of one application: how far it is, and what went wrong."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_RUNNING, _FAILED = "RUNNING", ("DEPLOY_FAILED", "UNHEALTHY")
_OWN_ERROR = re.compile(r"^(?:\w+\.)*octavo_\w+(?:\.\w+)*\.\w+: (?P<message>.*)", re.MULTILINE | re.DOTALL)
_LAST_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Exit)\w*(?:: .*)?$", re.MULTILINE)
_REPORT = re.compile(r" -- (?:engine|gateway) \w+:? (?P<text>.*)$")
_TAIL_BYTES = 8192


@dataclass(frozen=True, slots=True)
class ReplicaState:
    name: str
    state: str
    log: str | None


@dataclass(frozen=True, slots=True)
class DeploymentState:
    name: str
    target: int
    replicas: tuple[ReplicaState, ...]
    message: str

    @property
    def running(self) -> int:
        return sum(replica.state == _RUNNING for replica in self.replicas)


@dataclass(frozen=True, slots=True)
class ApplicationState:
    """``status`` is Serve's word, empty while the controller does not know the application."""

    status: str
    message: str
    deployments: tuple[DeploymentState, ...]

    @property
    def running(self) -> bool:
        return self.status == _RUNNING

    @property
    def failed(self) -> bool:
        return self.status in _FAILED

    def summary(self) -> str:
        """Returns ``Engine 1/2, Gateway 1/1``."""
        return ", ".join(f"{d.name} {d.running}/{d.target}" for d in self.deployments)

    def error(self) -> str:
        """Returns the cause in one message, found in the tracebacks that Serve reports."""
        messages = [d.message for d in self.deployments if d.message and "Error" in d.message]
        return next((found for message in [*messages, self.message] if (found := cause(message))), self.status)

    def starting_logs(self) -> Iterator[Path]:
        """Yields the logs of replicas that do not run yet."""
        for deployment in self.deployments:
            for replica in deployment.replicas:
                if replica.log and replica.state != _RUNNING:
                    yield Path(replica.log)


def read_application(details: Mapping[str, Any], name: str, logs: Path) -> ApplicationState:
    """Picks ``name`` out of what ``GET /api/serve/applications/`` answers; ``logs`` is Ray's folder of logs."""
    application = details.get("applications", {}).get(name) or {}
    deployments = tuple(
        DeploymentState(
            name=deployment,
            target=state.get("target_num_replicas") or 0,
            replicas=tuple(_replica(replica, logs) for replica in state.get("replicas", ())),
            message=state.get("message") or "",
        )
        for deployment, state in application.get("deployments", {}).items()
    )
    return ApplicationState(_word(application.get("status")), application.get("message") or "", deployments)


def cause(message: str) -> str:
    """Finds the message of our own error in a traceback, else the last error's line, else the last line."""
    if own := list(_OWN_ERROR.finditer(message)):
        return own[-1]["message"].strip()
    if other := _LAST_ERROR.findall(message):
        return str(other[-1]).strip()
    lines = message.strip().splitlines()
    return lines[-1] if lines else ""


def last_report(log: Path) -> str:
    """Returns what the replica said last of its progress."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((found["text"] for line in reversed(lines) if (found := _REPORT.search(line))), "")


def _replica(replica: Mapping[str, Any], logs: Path) -> ReplicaState:
    log = replica.get("log_file_path")
    return ReplicaState(
        name=str(replica.get("replica_id")),
        state=_word(replica.get("state")),
        log=str(logs / log.lstrip("/")) if log else None,
    )


def _word(value: Any) -> str:
    return str(getattr(value, "value", value) or "")
