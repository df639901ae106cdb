"""The operator's decisions. They are pure: spec, observed state and time determine actions, status and events.

Only ``status`` is remembered. So a repeated plan has the same result, and a restart of the operator changes nothing.
Once everything is as the spec asks, a plan has no actions, and its status is the present one.
"""

from collections.abc import Mapping

from octavo_api.errors import ConfigurationError
from octavo_operator.decide import event_texts
from octavo_operator.decide.deletion import plan_deletion
from octavo_operator.decide.external import decide_external
from octavo_operator.decide.managed import Managed
from octavo_operator.model import conditions, memory
from octavo_operator.model.actions import Plan
from octavo_operator.model.conditions import Reason, Type, Verdict
from octavo_operator.model.defaults import Defaults
from octavo_operator.model.desired import DesiredApplication, Mode, desired_application
from octavo_operator.model.observed import Key, Observed, Reach, Resource
from octavo_operator.model.resource import parse_spec
from octavo_operator.objects import ownership
from octavo_operator.report.evaluation import Evaluator
from octavo_operator.report.invalid import plan_invalid
from octavo_operator.report.status import build_status

CHANGING_S = 2.0
"""Seconds until the next reconcile while something changes."""
BLOCKED_S = 10.0
"""Seconds until the next reconcile while a change makes no progress, or while a user must act first, for example
create a Secret."""
STEADY_S = 30.0
"""Seconds until the next reconcile at rest."""


def plan(resource: Resource, observed: Observed, now: float, defaults: Defaults) -> Plan:
    """Decide one round. The caller adds jitter to ``delay``, and reconciles at once when something changes."""
    if resource.deleted_at is not None:
        return plan_deletion(resource, observed, now)
    if observed.namespace_terminating:
        # No object can be created here any more, and Kubernetes deletes the present ones with the namespace.
        return Plan((), resource.status, (), STEADY_S)
    try:
        deployment = parse_spec(resource)
    except ConfigurationError as error:
        return plan_invalid(resource, observed, now, str(error), BLOCKED_S)
    desired = desired_application(resource.key, deployment, defaults)
    remembered = memory.read_status(resource.status)
    problem = _problem(resource.key, observed, desired)
    blocked = problem is not None
    if desired.mode is Mode.MANAGED:
        managed = Managed(resource, deployment, desired, observed, now, defaults, remembered)
        # A problem that keeps a spec from being served does not keep it from being stopped.
        outcome = managed.decide(blocked=blocked and not deployment.spec.suspend)
    else:
        outcome = decide_external(
            resource, desired, observed, now, remembered, suspend=deployment.spec.suspend, blocked=blocked
        )
    evaluator = Evaluator(deployment, desired, remembered, outcome, problem, observed.ready_gateways)
    evaluation = evaluator.evaluate(resource.generation, now)
    updated = conditions.update(remembered.conditions, evaluation.conditions, resource.generation, now)
    return Plan(
        actions=outcome.actions,
        status=build_status(resource, deployment, desired, remembered, outcome, updated, evaluation, now),
        events=(*outcome.events, *event_texts.condition_events(remembered.conditions, updated)),
        delay=_delay(
            evaluation.conditions, evaluation.since if evaluation.progress else now, now, bool(outcome.draining)
        ),
    )


def _problem(key: Key, observed: Observed, desired: DesiredApplication) -> Verdict | None:
    """Return the problem if something that the spec needs is missing or cannot be created, else None."""
    if observed.missing_secrets:
        missing = ", ".join(observed.missing_secrets)
        return conditions.no(Reason.SECRET_NOT_FOUND, f"create Secret {missing} in this namespace; the spec names it")
    if observed.missing_claims:
        missing = ", ".join(observed.missing_claims)
        message = f"create PersistentVolumeClaim {missing} in this namespace; the spec names it"
        return conditions.no(Reason.CLAIM_NOT_FOUND, message)
    if observed.foreign:
        return ownership.name_conflict(observed.foreign, key)
    serve = observed.serve.get(desired.address)
    if serve is not None and serve.reach is Reach.INCOMPATIBLE:
        return conditions.no(Reason.INCOMPATIBLE_RAY, serve.message)
    return None


def _delay(verdicts: Mapping[Type, Verdict], progressed_at: float, now: float, draining: bool) -> float:
    """Return the seconds until the next reconcile: few while something changes, more the longer nothing does."""
    if Type.STALLED in verdicts:
        return BLOCKED_S
    if verdicts[Type.PROGRESSING].true or draining:
        return min(max(CHANGING_S, (now - progressed_at) / 10), BLOCKED_S)
    return STEADY_S
