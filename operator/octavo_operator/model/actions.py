"""Actions of a plan. ``act`` executes them in order. Each is idempotent, and a failed one ends the round."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a whole intended object, with the operator as forcing field manager.

    It applies to the object of ``uid``, and fails if that object is gone or replaced. Without a uid the operator
    creates the object. An object of the same name that another client has created since is a conflict.
    """

    document: Mapping[str, Any]
    uid: str = ""


@dataclass(frozen=True, slots=True)
class CreateSecret:
    """Creation of a Secret with random values for ``keys``.

    The values never pass through a plan. A Secret that exists by now is a conflict.
    """

    document: Mapping[str, Any]
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletion of a child by name, in the background. ``uid`` guards against a newer object of the same name."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class PatchCluster:
    """JSON Patch (RFC 6902) of a RayCluster that exists; its ``test`` operations guard against changes since.

    Server-side apply is never used there, because ``workerGroupSpecs`` is one atomic list. An apply without
    ``replicas`` would reset Ray's autoscaler to 0, and KubeRay would delete running pods. A failed test is a conflict.
    """

    name: str
    operations: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class PatchService:
    """JSON Patch of the Service. It removes ports that another client added, which server-side apply cannot do."""

    name: str
    operations: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class DeployApplication:
    """GET, merge and PUT at one Ray dashboard. It fails if an application of that name is not ours."""

    address: str
    application: Mapping[str, Any]
    proxy_location: str | None = None
    """Location of Serve's own proxies, if this PUT starts Serve; later it cannot change. None leaves it to Serve."""


@dataclass(frozen=True, slots=True)
class RemoveApplication:
    """GET, merge without the application, and PUT. Nothing if the application is gone already.

    With ``event_on_failure`` the operator tries once, for some seconds. If that fails, it writes this Event and
    continues the round.
    """

    address: str
    name: str
    event_on_failure: "Event | None" = None


@dataclass(frozen=True, slots=True)
class SetFinalizer:
    """Addition or removal of the operator's finalizer, guarded by the resource version."""

    present: bool


Action = (
    Apply | CreateSecret | Delete | PatchCluster | PatchService | DeployApplication | RemoveApplication | SetFinalizer
)


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event on the deployment. Equal Events within ten minutes become one with a count."""

    type: str
    """Normal or Warning."""
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Decisions of one round.

    ``status`` is the whole new status, written only if it differs. ``delay`` is the seconds until the next reconcile.
    """

    actions: tuple[Action, ...]
    status: Mapping[str, Any]
    events: tuple[Event, ...]
    delay: float
