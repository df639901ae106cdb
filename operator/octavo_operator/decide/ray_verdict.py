"""Verdicts of the condition ``RayClusterReady`` that managed and external mode share."""

from octavo_operator.decide.application import ApplicationView
from octavo_operator.model import conditions
from octavo_operator.model.conditions import Reason, State, Type, Verdict
from octavo_operator.model.memory import Memory
from octavo_operator.model.observed import Reach

UNREACHABLE_S = 120.0
"""Maximum seconds for a head to restart before its cluster counts as not ready."""


def answering(reach: Reach, view: ApplicationView) -> Verdict:
    """Return the verdict on a dashboard that answers."""
    message = view.serve.message if view.serve is not None else ""
    match reach:
        case Reach.AUTH_FAILED:
            return conditions.no(Reason.AUTH_FAILED, message or "Ray rejects the token")
        case Reach.INCOMPATIBLE:
            return conditions.no(Reason.INCOMPATIBLE_RAY, message)
    return conditions.yes(Reason.HEAD_READY)


def silent(memory: Memory, message: str, now: float) -> Verdict:
    """Return the verdict on a Ray that no longer answers: unknown at first, false if the silence lasts."""
    last = memory.conditions.get(Type.RAY_CLUSTER_READY)
    lasts = (
        last is not None
        and last.reason == Reason.UNREACHABLE
        and (last.state is State.FALSE or (last.since is not None and now - last.since >= UNREACHABLE_S))
    )
    return (conditions.no if lasts else conditions.unknown)(Reason.UNREACHABLE, message)
