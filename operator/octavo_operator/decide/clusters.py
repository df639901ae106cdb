"""Roles of a deployment's Ray clusters: one serves, one is to serve, others are to be created or stopped."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from octavo_api.resource.deployment import RolloutStrategy
from octavo_operator.model.observed import Cluster


@dataclass(frozen=True, slots=True)
class ClusterRoles:
    """Roles of the clusters in one round. ``active`` and ``target`` differ while a new cluster starts."""

    active: Cluster | None
    """The cluster that receives the Service's traffic."""
    target: Cluster | None
    """The cluster of the current spec, None if it does not exist yet."""
    create: bool = False
    """True if the target must be created now."""
    stop: tuple[Cluster, ...] = ()
    """Clusters to drain and delete."""
    announce: bool = False
    """True if the active cluster must stop before the target is created, and no Event has announced it yet."""


def assign_roles(
    clusters: Sequence[Cluster],
    *,
    desired_hash: str,
    desired_name: str,
    selected: str,
    strategy: RolloutStrategy,
    suspend: bool,
    announced: bool,
    locked_out: Collection[str] = (),
) -> ClusterRoles:
    """Decide the roles from the existing clusters alone.

    ``selected`` names the cluster that the Service selects or last selected. ``locked_out`` names clusters that reject
    the operator. It creates them again, in place with any strategy, because the new cluster has the same name.
    """
    live = [cluster for cluster in clusters if not cluster.deleting]
    candidates = [cluster for cluster in live if cluster.spec_hash == desired_hash or cluster.name == desired_name]
    target = next((cluster for cluster in candidates if cluster.name not in locked_out), None)
    active = _active(live, target, selected)
    if suspend:
        return ClusterRoles(active, None, stop=tuple(live))
    others = tuple(cluster for cluster in live if cluster is not target)
    if target is active:
        # A cluster of the same name that is being deleted must be gone first.
        free = not clusters if strategy is RolloutStrategy.IN_PLACE else all(c.name != desired_name for c in clusters)
        return ClusterRoles(active, target, create=target is None and free, stop=others)
    spare = tuple(cluster for cluster in others if cluster is not active)
    if target is not None:
        return ClusterRoles(active, target, stop=spare)
    if strategy is RolloutStrategy.NEW_CLUSTER and not candidates:
        create = all(cluster.name != desired_name for cluster in clusters)
        return ClusterRoles(active, None, create=create, stop=spare)
    return ClusterRoles(active, None, stop=others if announced else spare, announce=not announced)


def _active(live: Sequence[Cluster], target: Cluster | None, selected: str) -> Cluster | None:
    for cluster in live:
        if cluster.name == selected:
            return cluster
    return target or min(live, key=lambda cluster: (cluster.created_at, cluster.name), default=None)
