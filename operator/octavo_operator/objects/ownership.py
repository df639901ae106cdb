"""Whose an object is that has a name which a deployment needs: ours by its label or its owner, else somebody else's.

What somebody else made is never changed nor deleted, whatever it is called.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from octavo_api.deployment import ServingDeployment
from octavo_operator.model import conditions, kinds, names
from octavo_operator.model.conditions import Reason, Verdict
from octavo_operator.model.kinds import Kind
from octavo_operator.model.observed import Key, Resource
from octavo_operator.model.spec_hash import spec_hash


def needed(key: Key, deployment: ServingDeployment) -> tuple[tuple[Kind, str], ...]:
    """Returns what the spec asks for, now or when load rises: what is in the way then is better said now."""
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
    """By the label, so that a deployment that is made again takes over what an orphaning deletion left; or by owner, so
    that one whose label somebody took away is set right."""
    metadata = document["metadata"]
    if (metadata.get("labels") or {}).get(names.DEPLOYMENT_LABEL) == resource.key.name:
        return True
    return any(owner.get("uid") == resource.uid for owner in metadata.get("ownerReferences") or ())


def in_the_way(foreign: Sequence[tuple[str, str]], key: Key) -> Verdict:
    """``foreign`` are kinds and names, at least one."""
    said = " and ".join(f"{kind} {name}" for kind, name in foreign)
    kind, name = foreign[0]
    return conditions.no(
        Reason.OBJECT_NAME_CONFLICT,
        f"{said}: there already, made by somebody else, and not touched. Delete it, or give this resource another "
        f"name; to hand it over: kubectl label --namespace {key.namespace} {kind.lower()} {name} "
        f"{names.DEPLOYMENT_LABEL}={key.name}",
    )
