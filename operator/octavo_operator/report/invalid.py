"""Plan for an invalid spec: report it, change nothing, and keep the last valid generation serving."""

from octavo_operator.decide import event_texts
from octavo_operator.model import conditions, memory
from octavo_operator.model.actions import Plan
from octavo_operator.model.conditions import Reason, Type, Verdict
from octavo_operator.model.observed import Observed, Resource
from octavo_operator.report import evaluation, status


def plan_invalid(resource: Resource, observed: Observed, now: float, message: str, delay: float) -> Plan:
    remembered = memory.read_status(resource.status)
    invalid = conditions.no(Reason.INVALID_SPEC, status.truncate(message))
    stalled = conditions.yes(Reason.INVALID_SPEC, invalid.message)
    verdicts: dict[Type, Verdict] = {Type.READY: invalid, Type.AVAILABLE: _available(remembered, observed)}
    verdicts |= {Type.SPEC_VALID: invalid}
    for kind in (Type.RAY_CLUSTER_READY, Type.APPLICATION_READY, Type.ROUTER_READY, Type.DEGRADED):
        if (last := remembered.conditions.get(kind)) is not None:
            verdicts[kind] = Verdict(last.state, last.reason, last.message)
    verdicts |= {Type.PROGRESSING: invalid, Type.STALLED: stalled}
    updated = conditions.update(remembered.conditions, verdicts, resource.generation, now)
    last_error = remembered.last_error
    since = last_error.since if last_error is not None and last_error.reason == Reason.INVALID_SPEC else now
    kept = {name: value for name, value in resource.status.items() if name != "progress"}
    return Plan(
        actions=(),
        status={
            **kept,
            "observedGeneration": resource.generation,
            "conditions": status.condition_documents(updated, now),
            "selector": status.selector(resource.key),
            "lastError": {
                "reason": str(Reason.INVALID_SPEC),
                "message": invalid.message,
                "since": memory.rfc3339(since),
            },
        },
        events=event_texts.condition_events(remembered.conditions, updated),
        delay=delay,
    )


def _available(remembered: memory.Memory, observed: Observed) -> Verdict:
    """Return the last known verdict. For a managed deployment, judge its gateways again."""
    last = remembered.conditions.get(Type.AVAILABLE)
    if last is None:
        return conditions.no(Reason.INVALID_SPEC)
    if not observed.clusters:
        return Verdict(last.state, last.reason, last.message)
    if not observed.ready_gateways:
        return conditions.no(Reason.NO_ENDPOINTS, "no gateway accepts connections")
    return evaluation.by_gateways(last)
