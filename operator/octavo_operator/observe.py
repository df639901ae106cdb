"""Reads of everything that a plan for one deployment depends on, again in each reconcile."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo_api.errors import ConfigurationError
from octavo_api.resource.deployment import ServingDeployment
from octavo_operator.kube.client import Children, Kube, unix_time
from octavo_operator.kube.gather import gather_all
from octavo_operator.kube.ray_tokens import ExternalRay, RayTokens, external_ray
from octavo_operator.model import kinds, names
from octavo_operator.model.defaults import Defaults
from octavo_operator.model.observed import Cluster, Key, Observed, Reach, Resource, ServeState
from octavo_operator.model.resource import force_delete_requested, parse_spec
from octavo_operator.objects.ownership import is_ours, needed_objects
from octavo_operator.serve.client import ServeClient

FORCED_TIMEOUT_S = 10.0
"""Maximum seconds to wait for a Ray during a forced deletion."""


async def observe(
    kube: Kube, serve: ServeClient, tokens: RayTokens, resource: Resource, defaults: Defaults
) -> Observed:
    """Observe the state for one plan; raise a ``KubeError``. A failure of a Ray dashboard is part of the result."""
    deployment = valid_spec(resource)
    if (external := external_ray(resource)) is not None:
        return await _external(kube, serve, tokens, resource, deployment, external)
    return await _managed(kube, serve, tokens, resource, deployment, defaults)


def valid_spec(resource: Resource) -> ServingDeployment | None:
    """Return the spec, None if it is invalid. The plan then reports the reason."""
    try:
        return parse_spec(resource)
    except ConfigurationError:
        return None


def secret_references(deployment: ServingDeployment) -> tuple[tuple[str, str], ...]:
    """Return name and key of every Secret value that the spec names."""
    endpoint, model = deployment.spec.endpoint, deployment.spec.model
    found = [
        (reference.name, reference.key) for reference in (model.secret_ref, endpoint.api_key_secret_ref) if reference
    ]
    if endpoint.tls_secret_ref is not None:
        found += [(endpoint.tls_secret_ref.name, key) for key in ("tls.crt", "tls.key")]
    if deployment.external is not None and (token := deployment.external.auth_secret_ref) is not None:
        found.append((token.name, token.key))
    return tuple(dict.fromkeys(found))


def claim_references(deployment: ServingDeployment) -> tuple[str, ...]:
    """Return every PersistentVolumeClaim that the spec names."""
    model = deployment.spec.model
    claims = [model.cache.claim_name] if model.cache is not None else []
    if model.uri.startswith("pvc://"):
        claims.append(model.uri.removeprefix("pvc://").partition("/")[0])
    return tuple(dict.fromkeys(claims))


def cluster_of(document: Mapping[str, Any]) -> Cluster:
    """Read a RayCluster as KubeRay reports it."""
    metadata, status = document["metadata"], document.get("status") or {}
    conditions = {item.get("type"): item for item in status.get("conditions") or ()}
    head = conditions.get("HeadPodReady") or {}
    return Cluster(
        name=metadata["name"],
        uid=metadata["uid"],
        spec_hash=(metadata.get("labels") or {}).get(names.HASH_LABEL, ""),
        created_at=unix_time(metadata.get("creationTimestamp")) or 0.0,
        deleting=metadata.get("deletionTimestamp") is not None,
        head_ready=head.get("status") == "True",
        message=_cluster_problem(status, conditions, head),
        image=_head_image(document),
        document=document,
    )


def _cluster_problem(
    status: Mapping[str, Any], conditions: Mapping[Any, Mapping[str, Any]], head: Mapping[str, Any]
) -> str:
    failure = conditions.get("ReplicaFailure") or {}
    if failure.get("status") == "True":
        return str(failure.get("message") or failure.get("reason") or "pods cannot be created")
    if head.get("status") == "False":
        return str(head.get("message") or head.get("reason") or "")
    return str(status.get("reason") or "")


def _head_image(document: Mapping[str, Any]) -> str:
    template = ((document.get("spec") or {}).get("headGroupSpec") or {}).get("template") or {}
    containers = (template.get("spec") or {}).get("containers") or [{}]
    return str(containers[0].get("image") or "")


async def _external(
    kube: Kube,
    serve: ServeClient,
    tokens: RayTokens,
    resource: Resource,
    deployment: ServingDeployment | None,
    external: ExternalRay,
) -> Observed:
    key, address, leaving = resource.key, external.address, resource.deleted_at is not None
    missing = await _missing_secrets(kube, key, deployment)
    if missing and not leaving:
        reason = f"Secret {missing[0]} with Ray's token does not exist"
        return Observed(serve={address: ServeState(address, Reach.AUTH_FAILED, reason)}, missing_secrets=missing)
    token, name = await tokens.token_for(resource), names.external_application(key)
    check_import = not leaving and deployment is not None and not deployment.spec.suspend
    try:
        async with asyncio.timeout(FORCED_TIMEOUT_S if leaving and force_delete_requested(resource) else None):
            state = await serve.fetch(address, token, name, with_listeners=not leaving, check_import=check_import)
    except TimeoutError:
        state = ServeState(address, Reach.UNREACHABLE, f"{address}: no answer in time")
    locked_out = bool(missing) and state.reach is Reach.AUTH_FAILED
    ends = locked_out and await kube.namespace_terminating(key.namespace)
    return Observed(serve={address: state}, missing_secrets=missing, namespace_terminating=ends)


async def _managed(
    kube: Kube,
    serve: ServeClient,
    tokens: RayTokens,
    resource: Resource,
    deployment: ServingDeployment | None,
    defaults: Defaults,
) -> Observed:
    key = resource.key
    listed, missing_secrets, missing_claims, ready = await gather_all(
        kube.list_children(key),
        _missing_secrets(kube, key, deployment),
        _missing_claims(kube, key, deployment),
        kube.ready_endpoints(key.namespace, names.service(key)),
    )
    children, foreign = await _with_unlabelled(kube, resource, deployment, listed)
    clusters = tuple(cluster_of(document) for document in children.clusters)
    reachable = [cluster for cluster in clusters if cluster.head_ready and not cluster.deleting]
    state: list[ServeState] = []
    # Kubernetes deletes a managed cluster with its object, so Serve needs no request.
    if reachable and resource.deleted_at is None:
        exists = (kinds.SECRET.kind, names.token_secret(key)) in children.objects
        token = await tokens.token_for(resource) if exists else None
        addresses = [defaults.dashboard_of(key, cluster.name) for cluster in reachable]
        state = await gather_all(*(serve.fetch(address, token, key.name) for address in addresses))
    service = kinds.SERVICE.kind, names.service(key)
    return Observed(
        kuberay_installed=children.kuberay_installed,
        clusters=clusters,
        serve={answer.address: answer for answer in state},
        children=children.objects,
        missing_secrets=missing_secrets,
        missing_claims=missing_claims,
        foreign=foreign,
        ready_gateways=ready if service in children.objects else 0,
    )


async def _with_unlabelled(
    kube: Kube, resource: Resource, deployment: ServingDeployment | None, listed: Children
) -> tuple[Children, tuple[tuple[str, str], ...]]:
    """Get needed objects by name if the list by label lacks them. Add ours, and return the foreign ones apart."""
    if deployment is None or resource.deleted_at is not None:
        return listed, ()
    known = {*listed.objects, *((kinds.RAY_CLUSTER.kind, found["metadata"]["name"]) for found in listed.clusters)}
    missing = [
        (kind, name) for kind, name in needed_objects(resource.key, deployment) if (kind.kind, name) not in known
    ]
    found = await gather_all(*(kube.get_child(kind, resource.key.namespace, name) for kind, name in missing))
    clusters, objects, foreign = list(listed.clusters), dict(listed.objects), []
    for (kind, name), document in zip(missing, found, strict=True):
        if document is None:
            continue
        if not is_ours(document, resource):
            foreign.append((kind.kind, name))
        elif kind == kinds.RAY_CLUSTER:
            clusters.append(document)
        else:
            objects[kind.kind, name] = document
    return replace(listed, clusters=tuple(clusters), objects=objects), tuple(foreign)


async def _missing_secrets(kube: Kube, key: Key, deployment: ServingDeployment | None) -> tuple[str, ...]:
    references = secret_references(deployment) if deployment is not None else ()
    names_ = tuple(dict.fromkeys(name for name, _ in references))
    found = dict(zip(names_, await gather_all(*(kube.get_secret(key.namespace, name) for name in names_)), strict=True))
    missing: dict[str, None] = {}
    for name, secret_key in references:
        secret = found[name]
        if secret is None:
            missing[name] = None
        elif secret_key not in secret["keys"]:
            missing[f"{name}/{secret_key}"] = None
    return tuple(missing)


async def _missing_claims(kube: Kube, key: Key, deployment: ServingDeployment | None) -> tuple[str, ...]:
    claims = claim_references(deployment) if deployment is not None else ()
    exist = await gather_all(*(kube.claim_exists(key.namespace, claim) for claim in claims))
    return tuple(claim for claim, exists in zip(claims, exist, strict=True) if not exists)
