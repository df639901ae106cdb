"""Roles of a deployment's Ray clusters: one serves, one is to serve, others are to be created or stopped."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from octavo_api.deployment import RolloutStrategy
from octavo_operator.model.observed import Cluster


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Roles of the clusters in one round.

    ``active`` has the Service's traffic. ``target`` has the wanted hash. They differ while a new cluster starts.
    ``announce``: the active cluster must stop before the new one is created, and no Event has announced it yet.
    """

    active: Cluster | None
    target: Cluster | None
    create: bool = False
    stop: tuple[Cluster, ...] = ()
    announce: bool = False


def arrange(
    clusters: Sequence[Cluster],
    *,
    wanted_hash: str,
    wanted_name: str,
    selected: str,
    strategy: RolloutStrategy,
    suspend: bool,
    announced: bool,
    lost: Collection[str] = (),
) -> Arrangement:
    """Decide the roles from the existing clusters alone.

    ``selected`` names the cluster that the Service selects or last selected. ``lost`` names clusters that the operator
    can no longer change. It creates them again, in place with any strategy, because the new cluster has the same name.
    """
    live = [cluster for cluster in clusters if not cluster.deleting]
    named = [cluster for cluster in live if cluster.spec_hash == wanted_hash or cluster.name == wanted_name]
    target = next((cluster for cluster in named if cluster.name not in lost), None)
    active = _active(live, target, selected)
    if suspend:
        return Arrangement(active, None, stop=tuple(live))
    others = tuple(cluster for cluster in live if cluster is not target)
    if target is active:
        # A cluster of the same name that is being deleted must be gone first.
        free = not clusters if strategy is RolloutStrategy.IN_PLACE else all(c.name != wanted_name for c in clusters)
        return Arrangement(active, target, create=target is None and free, stop=others)
    beside = tuple(cluster for cluster in others if cluster is not active)
    if target is not None:
        return Arrangement(active, target, stop=beside)
    if strategy is RolloutStrategy.NEW_CLUSTER and not named:
        create = all(cluster.name != wanted_name for cluster in clusters)
        return Arrangement(active, None, create=create, stop=beside)
    return Arrangement(active, None, stop=others if announced else beside, announce=not announced)


def _active(live: Sequence[Cluster], target: Cluster | None, selected: str) -> Cluster | None:
    for cluster in live:
        if cluster.name == selected:
            return cluster
    return target or min(live, key=lambda cluster: (cluster.created_at, cluster.name), default=None)
