"""Deletion of a deployment: remove its application, then release it. The deletion always ends."""

from collections.abc import Mapping

from octavo_api.resource.deployment import FINALIZER
from octavo_operator.decide.application import owner_of
from octavo_operator.model import names
from octavo_operator.model.actions import Action, Event, Plan, RemoveApplication, SetFinalizer
from octavo_operator.model.desired import address_of
from octavo_operator.model.event_reasons import EventReason
from octavo_operator.model.observed import Observed, Reach, Resource, ServeState
from octavo_operator.model.resource import force_delete_requested

DEADLINE_S = 300.0
_POLL_S = 2.0
_REST_S = 30.0


def plan_deletion(resource: Resource, observed: Observed, now: float) -> Plan:
    """Plan the next step of a deletion.

    Managed mode has no finalizer: by owner references Kubernetes deletes all objects, even while the operator is down.
    In external mode the operator first removes our application. It reads the raw document. So it can also delete a
    deployment whose spec this version of the operator does not understand.
    """
    if FINALIZER not in resource.finalizers:
        return _deletion_plan(resource, (), delay=_REST_S)
    address = _address(resource)
    orphan = _field(resource.document, "spec", "deletionPolicy") == "Orphan"
    if not address or orphan:
        return _release(resource)
    name = names.external_application(resource.key)
    deadline = (resource.deleted_at or now) + DEADLINE_S
    ends = force_delete_requested(resource) or now >= deadline
    serve = observed.serve.get(address)
    if serve is None or serve.reach is not Reach.OK:
        if observed.namespace_terminating and observed.missing_secrets:
            secret = observed.missing_secrets[0]
            reason = f"Secret {secret} with the token of that Ray is gone, and the namespace is being deleted"
            return _release(resource, _abandoned(name, address, reason))
        if ends:
            return _release(resource, _abandoned(name, address, _silence(serve)))
        return _deletion_plan(resource, (), delay=min(_POLL_S, deadline - now))
    application = serve.applications.get(name)
    deleting = application is not None and application.status == "DELETING"
    if application is None or (not deleting and owner_of(application) != str(resource.key)):
        return _release(resource)
    if deleting and ends:
        # Serve has accepted the removal and continues alone; its own timeout bounds the streams.
        return _release(resource)
    if ends:
        last = RemoveApplication(address, name, _abandoned(name, address, "Serve still has it"))
        return _deletion_plan(resource, (last, SetFinalizer(False)), delay=_REST_S)
    actions = () if deleting else (RemoveApplication(address, name),)
    return _deletion_plan(resource, actions, delay=min(_POLL_S, deadline - now))


def _release(resource: Resource, *events: Event) -> Plan:
    return _deletion_plan(resource, (SetFinalizer(False),), *events, delay=_REST_S)


def _deletion_plan(resource: Resource, actions: tuple[Action, ...], *events: Event, delay: float) -> Plan:
    return Plan(actions, resource.status, events, delay)


def _abandoned(name: str, address: str, reason: str) -> Event:
    return Event(
        "Warning",
        EventReason.CLEANUP_ABANDONED,
        f"application {name} may still run in the Ray at {address}: {reason}. Delete it there if that Ray still exists",
    )


def _address(resource: Resource) -> str:
    url = _field(resource.document, "spec", "rayCluster", "external", "dashboardURL")
    return address_of(url) if isinstance(url, str) else ""


def _silence(serve: ServeState | None) -> str:
    return serve.message.removeprefix(f"{serve.address}: ") if serve and serve.message else "it does not answer"


def _field(value: object, *path: str) -> object:
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
