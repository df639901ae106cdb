"""Progress of replicas, in words for a person."""

import re
from collections.abc import Iterator
from pathlib import Path

from octavo_operator.model.observed import Application

_REPORT = re.compile(r" -- (?:engine|gateway) \w+:? (?P<text>.*)$")
_TAIL_BYTES = 8192


def summary(application: Application | None) -> str:
    """Return ``Engine 1/2, Gateway 1/1``; an empty string if there is no application."""
    deployments = application.deployments.values() if application else ()
    return ", ".join(f"{deployment.name} {deployment.running}/{deployment.target}" for deployment in deployments)


def progress(application: Application | None, logs: Path) -> str:
    """Return the summary and the last report of a starting replica. ``logs`` is Ray's folder of logs."""
    reports = [report for log in starting_logs(application, logs) if (report := last_report(log))]
    return " · ".join(filter(None, (summary(application), *reports[-1:])))


def starting_logs(application: Application | None, logs: Path) -> Iterator[Path]:
    """Yield the logs of replicas that do not run yet."""
    for deployment in application.deployments.values() if application else ():
        for replica in deployment.replicas:
            if replica.log and replica.state != "RUNNING":
                yield logs / replica.log.lstrip("/")


def last_report(log: Path) -> str:
    """Return the replica's last report of its progress.

    Return an empty string if the replica cannot start, because Serve reports the reason.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    report = next((found["text"] for line in reversed(lines) if (found := _REPORT.search(line))), "")
    return "" if report.startswith("cannot start") else report
