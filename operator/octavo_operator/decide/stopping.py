"""Stop of a Ray cluster: its application is removed, its streams end, then the cluster is deleted."""

from dataclasses import dataclass

from octavo_operator.decide.application import Serving, Standing
from octavo_operator.model.actions import Action, Delete, RemoveApplication
from octavo_operator.model.desired import Place
from octavo_operator.model.observed import Cluster

SETTLE_S = 10.0
"""Seconds that gateways keep accepting after a switch of traffic, until every node's proxy knows the new cluster."""
_MARGIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Stop:
    """Next step of a stop. If ``draining``, streams are still ending, and the next plan looks again."""

    actions: tuple[Action, ...] = ()
    draining: bool = False


def stop(
    cluster: Cluster,
    view: Serving,
    place: Place,
    address: str,
    *,
    waited: float,
    drain_seconds: int,
    settle: bool,
    served: bool,
) -> Stop:
    """Return the next step to stop ``cluster``. ``waited`` is the seconds since its stop began.

    The stop ends within ``drain_seconds``, plus the seconds to settle and a margin.
    """
    settle_s = SETTLE_S if settle else 0.0
    late = waited >= settle_s + drain_seconds + _MARGIN_S
    if view.ours and not late:
        going = view.standing is Standing.LEAVING or waited < settle_s
        return Stop(() if going else (RemoveApplication(address, place.name),), draining=True)
    if view.standing is Standing.UNREACHED and served and not late:
        return Stop(draining=True)
    return Stop((Delete("ray.io/v1", "RayCluster", cluster.name, cluster.uid),))
