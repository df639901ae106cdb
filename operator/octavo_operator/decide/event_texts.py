"""Events of a plan, with their texts. Each states the change and, for a warning, the remedy."""

from collections.abc import Iterable, Mapping
from typing import Any

from octavo_api.resource.serve_config import ENGINE
from octavo_operator.decide.application import ApplicationView, DeployDecision, DeployReason, SyncState, config_hash
from octavo_operator.model import conditions
from octavo_operator.model.actions import Action, DeployApplication, Event
from octavo_operator.model.conditions import Condition, Reason, State, Type
from octavo_operator.model.desired import DesiredApplication, counts, with_retry
from octavo_operator.model.event_reasons import EventReason

NORMAL, WARNING = "Normal", "Warning"


def cluster_created(name: str) -> Event:
    return Event(NORMAL, EventReason.RAY_CLUSTER_CREATED, f"created RayCluster {name}")


def child_corrected(kind: str, name: str) -> Event:
    return Event(NORMAL, EventReason.DRIFT_CORRECTED, f"reverted an external change of {kind} {name}")


def interruption(old: str, new: str) -> Event:
    return Event(
        WARNING,
        EventReason.INTERRUPTING_SERVICE,
        f"this change needs a new Ray cluster: the operator deletes {old}, then creates {new}, and no request is "
        "answered in between. Revert the edit at once to keep the old cluster, or set rollout.strategy to NewCluster "
        "if there is room for both",
    )


def recreation(cluster: str, secret: str) -> Event:
    return Event(
        WARNING,
        EventReason.INTERRUPTING_SERVICE,
        f"Secret {secret} was deleted and replaced, so RayCluster {cluster} rejects the operator and new pods: the "
        "operator creates the cluster again, and no request is answered in between",
    )


def traffic_switched(old: str, new: str) -> Event:
    return Event(NORMAL, EventReason.TRAFFIC_SWITCHED, f"requests go to RayCluster {new}; {old} drains and is deleted")


def deploy(
    address: str, desired: DesiredApplication, view: ApplicationView, decision: DeployDecision, *, retried: bool
) -> tuple[tuple[Action, ...], tuple[Event, ...]]:
    """Return the action that deploys our application, and its event; both empty if no deploy is due."""
    if decision.reason is None and not retried:
        return (), ()
    sent = desired
    if decision.reason is None and view.application is not None:
        sent = with_retry(desired, view.application)
    action = DeployApplication(address, sent.config, desired.proxy_location)
    return (action,), (_deploy_event(desired, view, decision.reason),)


def _deploy_event(desired: DesiredApplication, view: ApplicationView, reason: DeployReason | None) -> Event:
    match reason:
        case DeployReason.LOST:
            return Event(
                NORMAL,
                EventReason.SERVE_CONFIG_RESTORED,
                f"Ray Serve had lost application {desired.name}; the operator deployed it again",
            )
        case DeployReason.DRIFTED:
            change = "removed" if view.sync is SyncState.MISSING else "changed"
            return Event(
                NORMAL,
                EventReason.DRIFT_CORRECTED,
                f"another client {change} application {desired.name}; the operator restored it",
            )
        case DeployReason.SPEC_CHANGED:
            return _scaled(desired, view) or Event(
                NORMAL, EventReason.SERVE_CONFIG_APPLIED, f"deployed application {desired.name} to Ray Serve"
            )
    return Event(
        NORMAL, EventReason.DEPLOY_RETRIED, f"application {desired.name} failed to deploy; the operator retries it"
    )


def _scaled(desired: DesiredApplication, view: ApplicationView) -> Event | None:
    """Return the event of a change that only scales engines, None for other changes."""
    before = (view.application.config if view.application else None) or {}
    if view.sync is not SyncState.OUTDATED or _without_counts(before) != _without_counts(desired.config):
        return None
    old, new = counts(before, ENGINE), counts(desired.config, ENGINE)
    return Event(
        NORMAL,
        EventReason.SCALED,
        f"engine replicas: {_range(old.minimum, old.maximum)} → {_range(new.minimum, new.maximum)}",
    )


def _range(minimum: int, maximum: int) -> str:
    return str(minimum) if minimum == maximum or (minimum, maximum) == (0, 1) else f"{minimum} to {maximum}"


def _without_counts(config: Mapping[str, Any]) -> str:
    deployments = [
        {name: value for name, value in item.items() if name != "autoscaling_config" or item.get("name") != ENGINE}
        for item in config.get("deployments") or ()
    ]
    return config_hash({**config, "deployments": deployments})


WARNING_REASONS: Mapping[tuple[Type, State], frozenset[Reason]] = {
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


def condition_events(before: Mapping[str, Condition], after: Iterable[Condition]) -> tuple[Event, ...]:
    """Return the events of the conditions that changed; empty if none did."""
    events: list[Event] = []
    for condition in conditions.changed(before, after):
        kind, reason = Type(condition.type), condition.reason
        if reason in WARNING_REASONS.get((kind, condition.state), frozenset()):
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
