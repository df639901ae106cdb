"""ServingDeployments that tests apply."""

from collections.abc import Mapping
from typing import Any


def deployment(name: str = "books", **spec: Any) -> dict[str, Any]:
    """The smallest one, with ``spec``'s fields beside the model."""
    return {
        "apiVersion": "serving.octavo.dev/v1alpha1",
        "kind": "ServingDeployment",
        "metadata": {"name": name},
        "spec": {"model": {"uri": "embedded://smollm2"}, **spec},
    }


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with the fields of ``change``, section by section."""
    both = {
        name: merged(base[name], value)
        for name, value in change.items()
        if isinstance(value, Mapping) and isinstance(base.get(name), Mapping)
    }
    return {**base, **change, **both}
