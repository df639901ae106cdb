"""Kubernetes Events on a deployment. Equal Events within ten minutes become one with a count."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from octavo_operator.model import kinds, names
from octavo_operator.model.actions import Event
from octavo_operator.model.observed import Resource

WINDOW_S = 600.0
_MESSAGE_LENGTH = 1024
_MAX_REMEMBERED = 4096


@dataclass(slots=True)
class _Repeats:
    first: float
    last: float
    count: int


class EventLog:
    """Counter of repeated Events. Its memory may be lost: after a restart of the operator a new Event starts."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        """Unix time."""
        self._repeats: dict[tuple[str, Event], _Repeats] = {}

    def document(self, resource: Resource, event: Event) -> dict[str, Any]:
        """Count ``event`` and return the core/v1 Event to apply, the same object for a repeat.

        The operator writes it by server-side apply, under a name that is made of its contents. So it needs no right to
        read Events.
        """
        now = self._now()
        repeats = self._repeats.get((resource.uid, event))
        if repeats is None or now - repeats.first >= WINDOW_S:
            self._forget(now)
            repeats = self._repeats[resource.uid, event] = _Repeats(first=now, last=now, count=0)
        repeats.last = now
        repeats.count += 1
        identity = "\0".join((resource.uid, event.type, event.reason, event.message, repr(repeats.first)))
        return {
            "apiVersion": kinds.EVENT.api_version,
            "kind": kinds.EVENT.kind,
            "metadata": {
                "name": f"{resource.key.name}.{hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()}",
                "namespace": resource.key.namespace,
            },
            "involvedObject": {
                "apiVersion": kinds.SERVING_DEPLOYMENT.api_version,
                "kind": kinds.SERVING_DEPLOYMENT.kind,
                "namespace": resource.key.namespace,
                "name": resource.key.name,
                "uid": resource.uid,
            },
            "type": event.type,
            "reason": event.reason,
            "message": event.message[:_MESSAGE_LENGTH],
            "source": {"component": names.FIELD_MANAGER},
            "reportingComponent": names.FIELD_MANAGER,
            "firstTimestamp": _rfc3339(repeats.first),
            "lastTimestamp": _rfc3339(repeats.last),
            "count": repeats.count,
        }

    def _forget(self, now: float) -> None:
        if len(self._repeats) >= _MAX_REMEMBERED:
            old = sorted(self._repeats, key=lambda key: self._repeats[key].first)[: _MAX_REMEMBERED // 2]
            for key in old:
                del self._repeats[key]
        for key in [key for key, repeats in self._repeats.items() if now - repeats.first >= WINDOW_S]:
            del self._repeats[key]


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
