"""Deletion of a deployment: remove its application, then release it. The deletion always ends."""

from collections.abc import Mapping

from octavo_api.deployment import FINALIZER
from octavo_operator.decide.application import owner_of
from octavo_operator.model import names
from octavo_operator.model.actions import Action, Event, Plan, RemoveApplication, SetFinalizer
from octavo_operator.model.desired import address_of
from octavo_operator.model.event_reasons import EventReason
from octavo_operator.model.observed import Observed, Reach, Resource, Serve
from octavo_operator.model.resource import forced

DEADLINE_S = 300.0
_LOOK_AGAIN_S = 2.0
_REST_S = 30.0


def plan_deletion(resource: Resource, observed: Observed, now: float) -> Plan:
    """Plan the next step of a deletion.

    Managed mode has no finalizer: by owner references Kubernetes deletes all objects, even while the operator is down.
    In external mode the operator first removes our application. It reads the raw document. So it can also delete a
    deployment whose spec this version of the operator does not understand.
    """
    if FINALIZER not in resource.finalizers:
        return _plan(resource, (), delay=_REST_S)
    address = _address(resource)
    orphan = _field(resource.document, "spec", "deletionPolicy") == "Orphan"
    if not address or orphan:
        return _release(resource)
    name = names.external_application(resource.key)
    deadline = (resource.deleted_at or now) + DEADLINE_S
    ends = forced(resource) or now >= deadline
    serve = observed.serve.get(address)
    if serve is None or serve.reach is not Reach.OK:
        if observed.namespace_terminating and observed.missing_secrets:
            secret = observed.missing_secrets[0]
            why = f"Secret {secret} with its token is gone and cannot come back, because the namespace is being deleted"
            return _release(resource, _abandoned(name, address, why))
        if ends:
            return _release(resource, _abandoned(name, address, _said(serve)))
        return _plan(resource, (), delay=min(_LOOK_AGAIN_S, deadline - now))
    application = serve.applications.get(name)
    leaving = application is not None and application.status == "DELETING"
    if application is None or (not leaving and owner_of(application) != str(resource.key)):
        return _release(resource)
    if leaving and ends:
        # Serve has accepted the removal and continues alone; its own timeout bounds the streams.
        return _release(resource)
    if ends:
        last = RemoveApplication(address, name, _abandoned(name, address, "the application is still there"))
        return _plan(resource, (last, SetFinalizer(False)), delay=_REST_S)
    actions = () if leaving else (RemoveApplication(address, name),)
    return _plan(resource, actions, delay=min(_LOOK_AGAIN_S, deadline - now))


def _release(resource: Resource, *events: Event) -> Plan:
    return _plan(resource, (SetFinalizer(False),), *events, delay=_REST_S)


def _plan(resource: Resource, actions: tuple[Action, ...], *events: Event, delay: float) -> Plan:
    return Plan(actions, resource.status, events, delay)


def _abandoned(name: str, address: str, why: str) -> Event:
    return Event(
        "Warning",
        EventReason.CLEANUP_ABANDONED,
        f"application {name} was not taken out of the Ray at {address}: {why}. If that Ray lives, take it out there",
    )


def _address(resource: Resource) -> str:
    url = _field(resource.document, "spec", "rayCluster", "external", "dashboardURL")
    return address_of(url) if isinstance(url, str) else ""


def _said(serve: Serve | None) -> str:
    return serve.message.removeprefix(f"{serve.address}: ") if serve and serve.message else "it does not answer"


def _field(value: object, *path: str) -> object:
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
