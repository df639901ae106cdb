"""Reads, in each reconcile afresh, everything that a plan for one deployment depends on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo_api.deployment import ServingDeployment
from octavo_api.errors import ConfigurationError
from octavo_operator import names
from octavo_operator.concurrent import together
from octavo_operator.defaults import Defaults
from octavo_operator.kube import Kube, unix_time
from octavo_operator.observed import Cluster, Key, Observed, Reach, Resource, Serve
from octavo_operator.placement import address_of
from octavo_operator.plan import read
from octavo_operator.serve import ServeClient

AUTH_TOKEN_KEY = "auth_token"


async def observe(kube: Kube, serve: ServeClient, resource: Resource, defaults: Defaults) -> Observed:
    """Raises a ``KubeError``; what a Ray dashboard does not answer is part of what is observed."""
    deployment = read_spec(resource)
    if (external := external_ray(resource)) is not None:
        return await _external(kube, serve, resource, deployment, external)
    return await _managed(kube, serve, resource, deployment, defaults)


def read_spec(resource: Resource) -> ServingDeployment | None:
    """Returns None where the spec is invalid; the plan says why."""
    try:
        return read(resource)
    except ConfigurationError:
        return None


@dataclass(frozen=True, slots=True)
class ExternalRay:
    """``token`` names a Secret and its key."""

    address: str
    token: tuple[str, str] | None


def external_ray(resource: Resource) -> ExternalRay | None:
    """Returns the Ray that somebody else runs, None in managed mode.

    Read from the raw document: a deployment whose spec this version does not understand can be deleted as well.
    """
    found: Any = (resource.document.get("spec") or {}).get("rayCluster") or {}
    external = found.get("external") if isinstance(found, Mapping) else None
    if not isinstance(external, Mapping) or not isinstance(url := external.get("dashboardURL"), str):
        return None
    reference = external.get("authSecretRef")
    if not isinstance(reference, Mapping) or not isinstance(name := reference.get("name"), str):
        return ExternalRay(address_of(url), None)
    return ExternalRay(address_of(url), (name, str(reference.get("key") or AUTH_TOKEN_KEY)))


async def ray_token(kube: Kube, resource: Resource) -> str | None:
    """Returns the token of the deployment's Ray, None where none is sent or none is there. Read at each use."""
    external = external_ray(resource)
    name, key = (names.token_secret(resource.key), AUTH_TOKEN_KEY)
    if external is not None:
        if external.token is None:
            return None
        name, key = external.token
    value = await kube.secret_value(resource.key.namespace, name, key)
    return None if value is None else _header_value(value)


def secret_references(deployment: ServingDeployment) -> tuple[tuple[str, str], ...]:
    """Returns name and key of every Secret value that the spec asks for."""
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
    """Returns every PersistentVolumeClaim that the spec asks for."""
    model = deployment.spec.model
    claims = [model.cache.claim_name] if model.cache is not None else []
    if model.uri.startswith("pvc://"):
        claims.append(model.uri.removeprefix("pvc://").partition("/")[0])
    return tuple(dict.fromkeys(claims))


def cluster_of(document: Mapping[str, Any]) -> Cluster:
    """Reads a RayCluster by KubeRay's own words."""
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
        message=_hindrance(status, conditions, head),
        image=_head_image(document),
        document=document,
    )


def _hindrance(status: Mapping[str, Any], conditions: Mapping[Any, Mapping[str, Any]], head: Mapping[str, Any]) -> str:
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
    kube: Kube, serve: ServeClient, resource: Resource, deployment: ServingDeployment | None, external: ExternalRay
) -> Observed:
    key, address, leaving = resource.key, external.address, resource.deleted_at is not None
    missing = await _missing_secrets(kube, key, deployment)
    if missing and not leaving:
        reason = f"Secret {missing[0]} with Ray's token does not exist"
        seen = Serve(address=address, reach=Reach.AUTH_FAILED, message=reason)
    else:
        token = await ray_token(kube, resource)
        seen = await serve.read(address, token, names.external_application(key), doors=not leaving)
    return Observed(serve={address: seen}, missing_secrets=missing)


async def _managed(
    kube: Kube, serve: ServeClient, resource: Resource, deployment: ServingDeployment | None, defaults: Defaults
) -> Observed:
    key = resource.key
    children, missing_secrets, missing_claims, ready = await together(
        kube.list_children(key),
        _missing_secrets(kube, key, deployment),
        _missing_claims(kube, key, deployment),
        kube.ready_endpoints(key.namespace, names.service(key)),
    )
    clusters = tuple(cluster_of(document) for document in children.clusters)
    reachable = [cluster for cluster in clusters if cluster.head_ready and not cluster.deleting]
    seen: list[Serve] = []
    # A managed cluster goes with its object, Serve needs no telling.
    if reachable and resource.deleted_at is None:
        token = await ray_token(kube, resource)
        addresses = [defaults.dashboard_of(key, cluster.name) for cluster in reachable]
        seen = await together(*(serve.read(address, token, key.name) for address in addresses))
    return Observed(
        kuberay_installed=children.kuberay_installed,
        clusters=clusters,
        serve={answer.address: answer for answer in seen},
        children=children.objects,
        missing_secrets=missing_secrets,
        missing_claims=missing_claims,
        ready_gateways=ready,
    )


async def _missing_secrets(kube: Kube, key: Key, deployment: ServingDeployment | None) -> tuple[str, ...]:
    wanted = secret_references(deployment) if deployment is not None else ()
    names_ = tuple(dict.fromkeys(name for name, _ in wanted))
    found = dict(zip(names_, await together(*(kube.secret(key.namespace, name) for name in names_)), strict=True))
    missing: dict[str, None] = {}
    for name, secret_key in wanted:
        secret = found[name]
        if secret is None:
            missing[name] = None
        elif secret_key not in secret["keys"]:
            missing[f"{name}/{secret_key}"] = None
    return tuple(missing)


async def _missing_claims(kube: Kube, key: Key, deployment: ServingDeployment | None) -> tuple[str, ...]:
    claims = claim_references(deployment) if deployment is not None else ()
    exist = await together(*(kube.claim_exists(key.namespace, claim) for claim in claims))
    return tuple(claim for claim, exists in zip(claims, exist, strict=True) if not exists)


def _header_value(value: bytes) -> str | None:
    """A token with a line break at its end is the commonest slip; one that no header can carry is none."""
    try:
        text = value.decode("ascii").strip()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() and text else None
