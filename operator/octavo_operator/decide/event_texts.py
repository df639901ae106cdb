"""Events, in plain words with advice for the user, and the steps that an Event reports."""

from collections.abc import Iterable, Mapping
from typing import Any

from octavo_api.serve_config import ENGINE
from octavo_operator.decide.application import Put, Serving, Standing, Why, config_hash
from octavo_operator.decide.outcome import DEPLOY_RETRY_S
from octavo_operator.model import conditions
from octavo_operator.model.actions import Action, Event, PutApplication
from octavo_operator.model.conditions import Condition, Reason, State, Type, Verdict
from octavo_operator.model.desired import Place, begun_again, counts
from octavo_operator.model.event_reasons import EventReason
from octavo_operator.model.memory import Memory
from octavo_operator.model.observed import Reach

NORMAL, WARNING = "Normal", "Warning"
UNREACHABLE_S = 120.0
"""Maximum seconds for a head to restart before its cluster counts as not ready."""


def cluster_created(name: str) -> Event:
    return Event(NORMAL, EventReason.RAY_CLUSTER_CREATED, f"created RayCluster {name}")


def child_corrected(kind: str, name: str) -> Event:
    return Event(NORMAL, EventReason.DRIFT_CORRECTED, f"reverted an external change of {kind} {name}")


def interrupts(old: str, new: str) -> Event:
    return Event(
        WARNING,
        EventReason.INTERRUPTING_SERVICE,
        f"this change needs a new Ray cluster: the operator deletes {old}, then creates {new}, and no request is "
        "answered in between. Revert the edit at once to keep the old cluster, or set rollout.strategy to NewCluster "
        "if there is room for both",
    )


def recreated(cluster: str, secret: str) -> Event:
    return Event(
        WARNING,
        EventReason.INTERRUPTING_SERVICE,
        f"Secret {secret} was deleted and replaced, so RayCluster {cluster} rejects the operator and new pods: the "
        "operator creates the cluster again, and no request is answered in between",
    )


def switched(old: str, new: str) -> Event:
    return Event(NORMAL, EventReason.TRAFFIC_SWITCHED, f"requests go to RayCluster {new}; {old} drains and is deleted")


def put(
    address: str, place: Place, view: Serving, decision: Put, *, retried: bool
) -> tuple[tuple[Action, ...], tuple[Event, ...]]:
    """Return the action that puts our application, and its event; both empty if no put is due."""
    if decision.why is None and not retried:
        return (), ()
    wanted = place
    if decision.why is None and view.application is not None:
        wanted = begun_again(place, view.application)
    action = PutApplication(address, wanted.application, place.proxy_location)
    return (action,), (_put_event(place, view, decision.why),)


def _put_event(place: Place, view: Serving, why: Why | None) -> Event:
    match why:
        case Why.RESTORED:
            return Event(
                NORMAL,
                EventReason.SERVE_CONFIG_RESTORED,
                f"Ray Serve had lost application {place.name}; the operator deployed it again",
            )
        case Why.CORRECTED:
            did = "removed" if view.standing is Standing.MISSING else "changed"
            return Event(
                NORMAL,
                EventReason.DRIFT_CORRECTED,
                f"another client {did} application {place.name}; the operator restored it",
            )
        case Why.APPLIED:
            return _scaled(place, view) or Event(
                NORMAL, EventReason.SERVE_CONFIG_APPLIED, f"deployed application {place.name} to Ray Serve"
            )
    return Event(
        NORMAL, EventReason.DEPLOY_RETRIED, f"application {place.name} failed to deploy; the operator retries it"
    )


def _scaled(place: Place, view: Serving) -> Event | None:
    """Return the event of a change that only scales engines, None for other changes."""
    before = (view.application.config if view.application else None) or {}
    if view.standing is not Standing.OTHER or _uncounted(before) != _uncounted(place.application):
        return None
    old, new = counts(before, ENGINE), counts(place.application, ENGINE)
    return Event(
        NORMAL, EventReason.SCALED, f"engine replicas: {_range(old.least, old.most)} → {_range(new.least, new.most)}"
    )


def _range(least: int, most: int) -> str:
    return str(least) if least == most or (least == 0 and most == 1) else f"{least} to {most}"


def _uncounted(config: Mapping[str, Any]) -> str:
    deployments = [
        {name: value for name, value in item.items() if name != "autoscaling_config" or item.get("name") != ENGINE}
        for item in config.get("deployments") or ()
    ]
    return config_hash({**config, "deployments": deployments})


def reached(reach: Reach, view: Serving) -> Verdict:
    """Return the verdict on a dashboard that answers."""
    said = view.serve.message if view.serve is not None else ""
    match reach:
        case Reach.AUTH_FAILED:
            return conditions.no(Reason.AUTH_FAILED, said or "Ray refuses the token")
        case Reach.INCOMPATIBLE:
            return conditions.no(Reason.INCOMPATIBLE_RAY, said)
    return conditions.yes(Reason.HEAD_READY)


def unreached(memory: Memory, said: str, now: float) -> Verdict:
    """Return the verdict on a Ray that no longer answers: unknown at first, false if the silence lasts."""
    last = memory.conditions.get(Type.RAY_CLUSTER_READY)
    lasts = (
        last is not None
        and last.reason == Reason.UNREACHABLE
        and (last.state is State.FALSE or (last.since is not None and now - last.since >= UNREACHABLE_S))
    )
    return (conditions.no if lasts else conditions.unknown)(Reason.UNREACHABLE, said)


def retry_due(view: Serving, memory: Memory, now: float) -> bool:
    """Return True if a retry of a failed deployment is due, because the reason may lie outside the spec."""
    failed = view.standing is Standing.CURRENT and view.application is not None
    if not failed or view.application is None or view.application.status != "DEPLOY_FAILED":
        return False
    last = memory.last_error
    return last is not None and last.reason == Reason.DEPLOY_FAILED and now - last.since >= DEPLOY_RETRY_S


WARNED: Mapping[tuple[Type, State], frozenset[Reason]] = {
    (Type.SPEC_VALID, State.FALSE): frozenset(
        {
            Reason.INVALID_SPEC,
            Reason.SECRET_NOT_FOUND,
            Reason.CLAIM_NOT_FOUND,
            Reason.OBJECT_NAME_CONFLICT,
            Reason.INCOMPATIBLE_RAY,
        }
    ),
    (Type.RAY_CLUSTER_READY, State.FALSE): frozenset({Reason.KUBERAY_NOT_INSTALLED, Reason.AUTH_FAILED}),
    (Type.APPLICATION_READY, State.FALSE): frozenset(
        {Reason.DEPLOY_FAILED, Reason.UNHEALTHY, Reason.APPLICATION_NAME_CONFLICT}
    ),
    (Type.PROGRESSING, State.FALSE): frozenset({Reason.PROGRESS_DEADLINE_EXCEEDED}),
    (Type.PROGRESSING, State.TRUE): frozenset({Reason.INSUFFICIENT_CAPACITY}),
    (Type.DEGRADED, State.TRUE): frozenset({Reason.DRIFT_FIGHT}),
}


def of_conditions(before: Mapping[str, Condition], after: Iterable[Condition]) -> tuple[Event, ...]:
    """Return the events of the conditions that changed; empty if none did."""
    events: list[Event] = []
    for condition in conditions.newly(before, after):
        kind, reason = Type(condition.type), condition.reason
        if reason in WARNED.get((kind, condition.state), frozenset()):
            events.append(Event(WARNING, str(reason), condition.message))
        elif kind is Type.RAY_CLUSTER_READY and condition.state is State.UNKNOWN:
            events.append(Event(WARNING, EventReason.RAY_UNREACHABLE, condition.message))
        elif kind is Type.READY and reason in (Reason.SERVING, Reason.SCALED_TO_ZERO):
            events.append(Event(NORMAL, EventReason.ROLLOUT_COMPLETE, f"generation {condition.generation} serves"))
        elif kind is Type.PROGRESSING and reason == Reason.SUSPENDED:
            events.append(
                Event(NORMAL, EventReason.SUSPENDED, "everything has stopped; set spec.suspend to false to serve again")
            )
    return tuple(events)
