"""What a plan asks for. ``act`` executes them in order; each is idempotent, and a failed one ends the round."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a whole intended object, with the operator as forcing field manager.

    To the one of ``uid``: it fails where that is gone or replaced. Without a uid the object is made, and one that
    somebody made meanwhile is a conflict.
    """

    document: Mapping[str, Any]
    uid: str = ""


@dataclass(frozen=True, slots=True)
class CreateSecret:
    """Creates a Secret with random values for ``keys``, which never pass through a plan; one that is there by now is a
    conflict."""

    document: Mapping[str, Any]
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes a child by name, in the background; ``uid`` guards against one of the same name made since."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class PatchCluster:
    """JSON Patch (RFC 6902) of a RayCluster that exists; its ``test`` operations guard against changes since.

    Never server-side apply there: ``workerGroupSpecs`` is one atomic list, so that applying it without ``replicas``
    would set Ray's autoscaler back to 0 and KubeRay would delete running pods. A failed test is a conflict.
    """

    name: str
    operations: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class PatchService:
    """JSON Patch of the Service, for what server-side apply cannot take away: ports that somebody else added."""

    name: str
    operations: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class PutApplication:
    """GET → merge → PUT at one Ray dashboard; refused where an application of that name is not ours."""

    address: str
    application: Mapping[str, Any]
    proxy_location: str | None = None
    """Where Serve's own proxies are to run, if this starts Serve; later it cannot change. None leaves it to Serve."""


@dataclass(frozen=True, slots=True)
class RemoveApplication:
    """GET → merge without the application → PUT; nothing where it is gone already.

    With ``else_told`` it is tried once, for some seconds: where that fails the event is told, and the round goes on.
    """

    address: str
    name: str
    else_told: "Event | None" = None


@dataclass(frozen=True, slots=True)
class SetFinalizer:
    """Adds or removes the operator's finalizer, guarded by the resource version."""

    present: bool


Action = Apply | CreateSecret | Delete | PatchCluster | PatchService | PutApplication | RemoveApplication | SetFinalizer


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event on the deployment. Equal ones within ten minutes become one with a count."""

    type: str
    """Normal or Warning."""
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """``status`` is the whole new status, written only where it differs; ``delay`` is seconds until the next look."""

    actions: tuple[Action, ...]
    status: Mapping[str, Any]
    events: tuple[Event, ...]
    delay: float
