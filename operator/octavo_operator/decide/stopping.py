"""How a Ray cluster is stopped: its application is taken out, its streams end, then it is deleted."""

from dataclasses import dataclass

from octavo_operator.decide.standing import Serving, Standing
from octavo_operator.model.actions import Action, Delete, RemoveApplication
from octavo_operator.model.observed import Cluster
from octavo_operator.model.placement import Place

SETTLE_S = 10.0
"""After traffic was switched away: until every node's proxy knows it, gateways must go on accepting."""
_MARGIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Stop:
    """``draining``: streams are still ending, the next plan looks again."""

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
    """``waited`` is seconds since this cluster was first to be stopped. Ends within ``drain_seconds`` and a little."""
    settle_s = SETTLE_S if settle else 0.0
    late = waited >= settle_s + drain_seconds + _MARGIN_S
    if view.ours and not late:
        going = view.standing is Standing.LEAVING or waited < settle_s
        return Stop(() if going else (RemoveApplication(address, place.name),), draining=True)
    if view.standing is Standing.UNREACHED and served and not late:
        return Stop(draining=True)
    return Stop((Delete("ray.io/v1", "RayCluster", cluster.name, cluster.uid),))
