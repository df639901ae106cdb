"""The ``RayCluster`` of KubeRay 1.5 that a managed deployment runs on, and the corrections of an existing one."""

from collections.abc import Mapping
from typing import Any

from octavo_api.resource.deployment import ServingDeployment
from octavo_api.resource.serve_config import ENGINE, GATEWAY
from octavo_operator.model import names
from octavo_operator.model.defaults import Defaults
from octavo_operator.model.desired import Counts, counts
from octavo_operator.model.observed import Cluster, Resource
from octavo_operator.model.spec_hash import digest
from octavo_operator.objects import pods
from octavo_operator.objects.children import labels, owner_reference
from octavo_operator.objects.matching import covers

TEMPLATE_ANNOTATION = f"{names.GROUP}/template-hash"
"""Annotation of a RayCluster: the hash of everything except counts, as this version of the operator builds it. If
another version built it differently, its templates stay, so that an upgrade of the operator changes no pod."""

_AUTOSCALER = {"limits": {"cpu": "500m", "memory": "512Mi"}, "requests": {"cpu": "100m", "memory": "512Mi"}}


def build_raycluster(
    resource: Resource,
    deployment: ServingDeployment,
    application: Mapping[str, Any],
    spec_hash: str,
    defaults: Defaults,
    live: Cluster | None = None,
) -> dict[str, Any]:
    """Return the whole object. Without an image in the spec it has the ``live`` cluster's image, if there is one."""
    kept = live.image if live is not None else ""
    image = deployment.managed.image or kept or defaults.image
    version = _ray_version(live) or defaults.ray_version
    name = names.cluster(resource.key, spec_hash)
    on_pods = {**labels(resource.key), names.HASH_LABEL: spec_hash}
    gateways, engines = counts(application, GATEWAY), counts(application, ENGINE)
    spec: dict[str, Any] = {
        "rayVersion": version,
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": _autoscaler(resource, deployment),
        "headGroupSpec": pods.head_group(resource.key, deployment, image, on_pods),
        "workerGroupSpecs": [
            pods.gateway_group(resource.key, deployment, image, on_pods),
            pods.engine_group(resource.key, deployment, image, on_pods),
        ],
    }
    if deployment.managed.gcs_fault_tolerance is not None:
        spec["gcsFaultToleranceOptions"] = deployment.managed.gcs_fault_tolerance
    template = digest(spec)
    for group, requested in zip(spec["workerGroupSpecs"], (gateways, engines), strict=True):
        minimum, maximum = bounds(requested)
        # Never ``replicas``: the autoscaler owns them.
        group |= {"minReplicas": minimum, "maxReplicas": maximum}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {
            "name": name,
            "namespace": resource.key.namespace,
            "labels": on_pods,
            "annotations": {TEMPLATE_ANNOTATION: template},
            "ownerReferences": [owner_reference(resource)],
        },
        "spec": spec,
    }


def bounds(requested: Counts) -> tuple[int, int]:
    """Return a group's ``minReplicas`` and ``maxReplicas``, with room for the pods that a roll adds for a while."""
    return requested.minimum, requested.maximum + requested.surge


def corrections(intended: Mapping[str, Any], live: Cluster) -> tuple[Mapping[str, Any], ...]:
    """Return JSON Patch operations that revert other clients' changes, except counts; empty if all is right."""
    document = live.document
    metadata = document.get("metadata") or {}
    operations: list[Mapping[str, Any]] = []
    references = intended["metadata"]["ownerReferences"]
    if not all(any(covers(ours, theirs) for theirs in metadata.get("ownerReferences") or ()) for ours in references):
        operations.append(_set("/metadata/ownerReferences", references))
    if not covers(intended["metadata"]["labels"], metadata.get("labels")):
        operations.append(
            _set("/metadata/labels", {**(metadata.get("labels") or {}), **intended["metadata"]["labels"]})
        )
    applied_hash = (metadata.get("annotations") or {}).get(TEMPLATE_ANNOTATION)
    if applied_hash == intended["metadata"]["annotations"][TEMPLATE_ANNOTATION]:
        operations += _spec_corrections(intended["spec"], document.get("spec") or {})
    return guarded(live, operations)


def _spec_corrections(intended: Mapping[str, Any], live: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    operations = [
        _set(f"/spec/{name}", value)
        for name, value in intended.items()
        if name != "workerGroupSpecs" and not covers(value, live.get(name))
    ]
    groups = group_indexes(live)
    for group in intended["workerGroupSpecs"]:
        if (found := groups.get(group["groupName"])) is None:
            operations.append(_set("/spec/workerGroupSpecs/-", group))
            continue
        index, theirs = found
        path = f"/spec/workerGroupSpecs/{index}"
        wrong = [name for name in ("template", "rayStartParams") if not covers(group[name], theirs.get(name))]
        if wrong:
            operations.append(is_group(index, group["groupName"]))
        operations += [_set(f"{path}/{name}", group[name]) for name in wrong]
    return operations


def group_indexes(spec: Mapping[str, Any]) -> dict[str, tuple[int, Mapping[str, Any]]]:
    """Return the worker groups with their positions, by name."""
    return {group["groupName"]: (index, group) for index, group in enumerate(spec.get("workerGroupSpecs") or ())}


def is_group(index: int, name: str) -> Mapping[str, Any]:
    """Return a test that makes the whole patch fail if the groups have another order by now."""
    return {"op": "test", "path": f"/spec/workerGroupSpecs/{index}/groupName", "value": name}


def guarded(live: Cluster, operations: list[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Put a test before ``operations`` that the object is still the same. Empty operations stay empty."""
    return ({"op": "test", "path": "/metadata/uid", "value": live.uid}, *operations) if operations else ()


def _set(path: str, value: Any) -> Mapping[str, Any]:
    """Return an ``add``, which sets a member even if it exists (RFC 6902 §4.1)."""
    return {"op": "add", "path": path, "value": value}


def _ray_version(live: Cluster | None) -> str:
    return "" if live is None else str((live.document.get("spec") or {}).get("rayVersion") or "")


def _autoscaler(resource: Resource, deployment: ServingDeployment) -> dict[str, Any]:
    """Return the options of the autoscaler's sidecar.

    It runs the head's image, so it needs the same token, and the same mounts if the user adds some.
    """
    managed = deployment.managed
    options: dict[str, Any] = {
        "version": "v2",
        "idleTimeoutSeconds": 60,
        "env": pods.environment(resource.key, deployment, {}),
        "resources": _AUTOSCALER,
        "securityContext": pods.security_context(),
    }
    if managed.image_pull_policy:
        options["imagePullPolicy"] = managed.image_pull_policy
    if managed.volume_mounts:
        options["volumeMounts"] = managed.volume_mounts
    return options
