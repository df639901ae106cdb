"""Stop of a Ray cluster: its application is removed, its streams end, then the cluster is deleted."""

from dataclasses import dataclass

from octavo_operator.decide.application import ApplicationView, SyncState
from octavo_operator.model.actions import Action, Delete, RemoveApplication
from octavo_operator.model.desired import DesiredApplication
from octavo_operator.model.observed import Cluster

SETTLE_S = 10.0
"""Seconds that gateways keep accepting after a switch of traffic, until every node's proxy knows the new cluster."""
_MARGIN_S = 30.0


@dataclass(frozen=True, slots=True)
class StopStep:
    """Next step of a stop. If ``draining``, streams are still ending, and the next plan looks again."""

    actions: tuple[Action, ...] = ()
    draining: bool = False


def stop_step(
    cluster: Cluster,
    view: ApplicationView,
    desired: DesiredApplication,
    address: str,
    *,
    waited: float,
    drain_seconds: int,
    settle: bool,
    may_have_streams: bool,
) -> StopStep:
    """Return the next step to stop ``cluster``. ``waited`` is the seconds since its stop began.

    The stop ends within ``drain_seconds``, plus the seconds to settle and a margin.
    """
    settle_s = SETTLE_S if settle else 0.0
    late = waited >= settle_s + drain_seconds + _MARGIN_S
    if view.ours and not late:
        ending = view.sync is SyncState.DELETING or waited < settle_s
        return StopStep(() if ending else (RemoveApplication(address, desired.name),), draining=True)
    if view.sync is SyncState.UNKNOWN and may_have_streams and not late:
        return StopStep(draining=True)
    return StopStep((Delete("ray.io/v1", "RayCluster", cluster.name, cluster.uid),))
