"""Which of a deployment's Ray clusters serves, which is to, which are made, and which stopped."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from octavo_api.deployment import RolloutStrategy
from octavo_operator.model.observed import Cluster


@dataclass(frozen=True, slots=True)
class Arrangement:
    """``active`` has the Service's traffic, ``target`` is of the wanted hash; they differ while a new one starts.

    ``announce``: the active cluster is to be stopped before the new one is made, and nobody was told yet.
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
    """Decides from what exists alone; ``selected`` names the cluster that the Service selects, or selected last.

    ``lost`` names clusters that nothing can be changed in any more: they are made again, in place in any case, because
    the new one has the same name.
    """
    live = [cluster for cluster in clusters if not cluster.deleting]
    named = [cluster for cluster in live if cluster.spec_hash == wanted_hash or cluster.name == wanted_name]
    target = next((cluster for cluster in named if cluster.name not in lost), None)
    active = _active(live, target, selected)
    if suspend:
        return Arrangement(active, None, stop=tuple(live))
    others = tuple(cluster for cluster in live if cluster is not target)
    if target is active:
        # One that is on its way out under the same name must be gone first.
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
