"""Bounds of the worker groups. Serve scales down first, then the group's minimum. The autoscaler owns the counts."""

from collections.abc import Mapping
from typing import Any

from octavo_operator.model.desired import Counts
from octavo_operator.model.observed import Cluster
from octavo_operator.objects.raycluster import bounds, group_indexes, guarded, is_group


def bounds_patch(
    live: Cluster, desired: Mapping[str, Counts], present: Mapping[str, int] | None, stopping: Mapping[str, int]
) -> tuple[Mapping[str, Any], ...]:
    """Return the JSON Patch that moves the groups' bounds towards ``desired``; empty if they are right.

    ``present`` counts the replicas of each group that Serve still has, including stopping ones. It is None during a
    roll, or if Serve does not report them; then no bound falls. ``stopping`` counts the replicas that only end their
    streams. Serve, like Kubernetes, already starts their successors. So the maximum grows by their number, and their
    pods take no room from the successors.
    """
    operations: list[Mapping[str, Any]] = []
    groups = group_indexes(live.document.get("spec") or {})
    for name, target in desired.items():
        if name in groups:
            index, group = groups[name]
            replicas_now = None if present is None else present.get(name, 0)
            changes = _changes(group, target, replicas_now, stopping.get(name, 0))
            if changes:
                path = f"/spec/workerGroupSpecs/{index}"
                operations.append(is_group(index, name))
                # KubeRay may not have written it yet, and then it counts as 0.
                if "replicas" in changes and "replicas" in group:
                    operations.append({"op": "test", "path": f"{path}/replicas", "value": group["replicas"]})
                operations += [{"op": "add", "path": f"{path}/{field}", "value": changes[field]} for field in changes]
    return guarded(live, operations)


def _changes(group: Mapping[str, Any], target: Counts, present: int | None, stopping: int) -> dict[str, int]:
    minimum, maximum = bounds(target)
    maximum += stopping
    old_minimum, old_maximum = int(group.get("minReplicas") or 0), int(group.get("maxReplicas") or 0)
    replicas = int(group.get("replicas") or 0)
    pods = min(max(replicas, old_minimum), old_maximum)
    """Number of pods that KubeRay runs now."""
    changes: dict[str, int] = {}
    if minimum < old_minimum:
        minimum = old_minimum if present is None else max(minimum, min(old_minimum, present))
    if minimum < old_minimum and replicas < old_minimum:
        # KubeRay would at once delete any pods above the lower minimum, busy ones too. With ``replicas`` in the patch
        # its count stays, and the autoscaler removes the idle pods by name.
        changes["replicas"] = old_minimum
    # A maximum below the pods that run would make KubeRay delete any of them.
    maximum = max(maximum, minimum, pods) if present is not None else max(maximum, old_maximum)
    if minimum != old_minimum:
        changes["minReplicas"] = minimum
    if maximum != old_maximum:
        changes["maxReplicas"] = maximum
    return changes
