"""Bounds of the worker groups. Serve scales down first, then the group's minimum. The autoscaler owns the counts."""

from collections.abc import Mapping
from typing import Any

from octavo_operator.model.desired import Counts
from octavo_operator.model.observed import Cluster
from octavo_operator.objects.raycluster import bounds, group_indexes, guarded, is_group


def bound(
    live: Cluster, wanted: Mapping[str, Counts], present: Mapping[str, int] | None, stopping: Mapping[str, int]
) -> tuple[Mapping[str, Any], ...]:
    """Return the JSON Patch that moves the groups' bounds towards ``wanted``; empty if they are right.

    ``present`` counts the replicas of each group that Serve still has, including stopping ones. It is None during a
    roll, or if Serve does not report them; then no bound falls. ``stopping`` counts the replicas that only end their
    streams. Serve, like Kubernetes, already starts their successors. So the maximum grows by their number, and their
    pods take no room from the successors.
    """
    operations: list[Mapping[str, Any]] = []
    groups = group_indexes(live.document.get("spec") or {})
    for name, target in wanted.items():
        if name in groups:
            index, group = groups[name]
            there = None if present is None else present.get(name, 0)
            changes = _changes(group, target, there, stopping.get(name, 0))
            if changes:
                path = f"/spec/workerGroupSpecs/{index}"
                operations.append(is_group(index, name))
                # KubeRay may not have written it yet, and then it counts as 0.
                if "replicas" in changes and "replicas" in group:
                    operations.append({"op": "test", "path": f"{path}/replicas", "value": group["replicas"]})
                operations += [{"op": "add", "path": f"{path}/{field}", "value": changes[field]} for field in changes]
    return guarded(live, operations)


def _changes(group: Mapping[str, Any], target: Counts, present: int | None, stopping: int) -> dict[str, int]:
    least, most = bounds(target)
    most += stopping
    old_least, old_most = int(group.get("minReplicas") or 0), int(group.get("maxReplicas") or 0)
    replicas = int(group.get("replicas") or 0)
    pods = min(max(replicas, old_least), old_most)
    """Number of pods that KubeRay runs now."""
    changes: dict[str, int] = {}
    if least < old_least:
        least = old_least if present is None else max(least, min(old_least, present))
    if least < old_least and replicas < old_least:
        # KubeRay would at once delete any pods above the lower minimum, busy ones too. With ``replicas`` in the patch
        # its count stays, and the autoscaler removes the idle pods by name.
        changes["replicas"] = old_least
    # A maximum below the pods that run would make KubeRay delete any of them.
    most = max(most, least, pods) if present is not None else max(most, old_most)
    if least != old_least:
        changes["minReplicas"] = least
    if most != old_most:
        changes["maxReplicas"] = most
    return changes
