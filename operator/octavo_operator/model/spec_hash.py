"""Hash of the fields of a spec that define the Ray cluster itself: a change of one needs a new cluster.

Only fields that the user wrote count, never a default. So neither a newer operator nor another default image changes a
hash.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from octavo_api.resource.deployment import ServingDeployment, Spec
from octavo_api.schema.fields import walk
from octavo_api.settings import Change

_PATHS = tuple(
    field.path
    for field in walk(Spec)
    if field.change == Change.NEW_CLUSTER and field.shape.section is None and "[]" not in field.path
)


def spec_hash(deployment: ServingDeployment) -> str:
    """Return the spec's hash as 16 hexadecimal digits."""
    return digest(written(deployment))


def digest(value: Any) -> str:
    """Return 16 hexadecimal digits of JSON that does not depend on the order of keys."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(canonical.encode(), digest_size=8).hexdigest()


def written(deployment: ServingDeployment) -> dict[str, Any]:
    """Return the fields that need a new cluster and are not at their defaults, by their path in ``spec``."""
    spec = deployment.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    found = {".".join(path): _at(spec, path) for path in _PATHS}
    if (claim := model_claim(deployment)) is not None:
        found["model.uri"] = claim  # of all model locations only a claim is mounted into pods
    return {path: value for path, value in found.items() if value is not None}


def model_claim(deployment: ServingDeployment) -> str | None:
    """Return the claim of a ``pvc://CLAIM/PATH`` model, None for other models."""
    scheme, _, rest = deployment.spec.model.uri.partition("://")
    return rest.partition("/")[0] if scheme == "pvc" else None


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value
