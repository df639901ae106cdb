"""Ownership of objects with a name that a deployment needs: ours by label or owner, else foreign.

The operator never changes or deletes a foreign object, whatever its name.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from octavo_api.resource.deployment import ServingDeployment
from octavo_operator.model import conditions, kinds, names
from octavo_operator.model.conditions import Reason, Verdict
from octavo_operator.model.kinds import Kind
from octavo_operator.model.observed import Key, Resource
from octavo_operator.model.spec_hash import spec_hash


def needed_objects(key: Key, deployment: ServingDeployment) -> tuple[tuple[Kind, str], ...]:
    """Return the objects that the spec needs, now or when load rises.

    A conflict of names that would appear with the load is better reported now.
    """
    spec = deployment.spec
    if spec.suspend:
        return ()
    found = [
        (kinds.SECRET, names.token_secret(key)),
        (kinds.RAY_CLUSTER, names.cluster(key, spec_hash(deployment))),
        (kinds.SERVICE, names.service(key)),
    ]
    if (spec.replicas if spec.autoscaling is None else spec.autoscaling.max_replicas) > 1:
        found.append((kinds.DISRUPTION_BUDGET, names.disruption_budget(key)))
    if deployment.managed.network_policy:
        found.append((kinds.NETWORK_POLICY, names.network_policy(key)))
    return tuple(found)


def is_ours(document: Mapping[str, Any], resource: Resource) -> bool:
    """Return True if the object belongs to ``resource``, by its label or by its owner.

    By the label a deployment that is created again adopts the objects that an orphaning deletion left. By the owner the
    operator corrects an object whose label another client removed.
    """
    metadata = document["metadata"]
    if (metadata.get("labels") or {}).get(names.DEPLOYMENT_LABEL) == resource.key.name:
        return True
    return any(owner.get("uid") == resource.uid for owner in metadata.get("ownerReferences") or ())


def name_conflict(foreign: Sequence[tuple[str, str]], key: Key) -> Verdict:
    """Return the verdict about ``foreign`` objects, at least one, by kind and name."""
    objects = " and ".join(f"{kind} {name}" for kind, name in foreign)
    kind, name = foreign[0]
    return conditions.no(
        Reason.OBJECT_NAME_CONFLICT,
        f"{objects}: exists and is foreign, so the operator does not change it. Delete it, or give this resource "
        f"another name; to hand it over: kubectl label --namespace {key.namespace} {kind.lower()} {name} "
        f"{names.DEPLOYMENT_LABEL}={key.name}",
    )
