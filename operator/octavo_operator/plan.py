"""The operator's decisions. They are pure: spec, observed state and time determine actions, status and events.

Only ``status`` is remembered. So a repeated plan has the same result, and a restart of the operator changes nothing.
Once everything is as the spec asks, a plan has no actions, and its status is the present one.
"""

from collections.abc import Mapping

from octavo_api.errors import ConfigurationError
from octavo_operator.decide import event_texts, external
from octavo_operator.decide.deletion import plan_deletion
from octavo_operator.decide.managed import Managed
from octavo_operator.model import conditions, memory
from octavo_operator.model.actions import Plan
from octavo_operator.model.conditions import Reason, Type, Verdict
from octavo_operator.model.defaults import Defaults
from octavo_operator.model.desired import Mode, Place, place
from octavo_operator.model.observed import Key, Observed, Reach, Resource
from octavo_operator.model.resource import read
from octavo_operator.objects import ownership
from octavo_operator.report import invalid, status
from octavo_operator.report.evaluation import Judge

CHANGING_S = 2.0
"""Seconds until the next look while something changes."""
BLOCKED_S = 10.0
"""Seconds until the next look while nothing changes, or while a user must act first: a missing Secret may come at any
time."""
STEADY_S = 30.0


def plan(resource: Resource, observed: Observed, now: float, defaults: Defaults) -> Plan:
    """Decide one round. The caller adds jitter to ``delay``, and looks at once when something changes."""
    if resource.deleted_at is not None:
        return plan_deletion(resource, observed, now)
    if observed.namespace_terminating:
        # No object can be created here any more, and Kubernetes deletes the present ones with the namespace.
        return Plan((), resource.status, (), STEADY_S)
    try:
        deployment = read(resource)
    except ConfigurationError as error:
        return invalid.plan_invalid(resource, observed, now, str(error), BLOCKED_S)
    where = place(resource.key, deployment, defaults)
    remembered = memory.read(resource.status)
    problem = _problem(resource.key, observed, where)
    blocked = problem is not None
    if where.mode is Mode.MANAGED:
        decider = Managed(resource, deployment, where, observed, now, defaults, remembered)
        # A problem that keeps a spec from being served does not keep it from being stopped.
        outcome = decider.decide(blocked=blocked and not deployment.spec.suspend)
    else:
        outcome = external.decide(
            resource, where, observed, now, remembered, suspend=deployment.spec.suspend, blocked=blocked
        )
    judge = Judge(deployment, where, remembered, outcome, problem, observed.ready_gateways)
    judged = judge.judge(resource.generation, now)
    made = conditions.follow(remembered.conditions, judged.conditions, resource.generation, now)
    return Plan(
        actions=outcome.actions,
        status=status.build(resource, deployment, where, remembered, outcome, made, judged, now),
        events=(*outcome.events, *event_texts.of_conditions(remembered.conditions, made)),
        delay=_delay(judged.conditions, judged.since if judged.progress else now, now, bool(outcome.draining)),
    )


def _problem(key: Key, observed: Observed, where: Place) -> Verdict | None:
    """Return the problem if something that the spec needs is missing or cannot be created, else None."""
    if observed.missing_secrets:
        missing = ", ".join(observed.missing_secrets)
        return conditions.no(Reason.SECRET_NOT_FOUND, f"create Secret {missing} in this namespace; the spec names it")
    if observed.missing_claims:
        missing = ", ".join(observed.missing_claims)
        said = f"create PersistentVolumeClaim {missing} in this namespace; the spec names it"
        return conditions.no(Reason.CLAIM_NOT_FOUND, said)
    if observed.foreign:
        return ownership.in_the_way(observed.foreign, key)
    serve = observed.serve.get(where.address)
    if serve is not None and serve.reach is Reach.INCOMPATIBLE:
        return conditions.no(Reason.INCOMPATIBLE_RAY, serve.message)
    return None


def _delay(judged: Mapping[Type, Verdict], progressed_at: float, now: float, draining: bool) -> float:
    """Return the seconds until the next look: few while something changes, more the longer nothing does."""
    if Type.STALLED in judged:
        return BLOCKED_S
    if judged[Type.PROGRESSING].true or draining:
        return min(max(CHANGING_S, (now - progressed_at) / 10), BLOCKED_S)
    return STEADY_S
