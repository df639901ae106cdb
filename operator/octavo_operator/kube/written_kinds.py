"""Kinds that the operator writes, by API version and kind."""

from collections.abc import Mapping
from typing import Any

from octavo_operator.kube.errors import Rejected
from octavo_operator.model.kinds import LISTED_CHILDREN, RAY_CLUSTER, SECRET, Kind

_WRITTEN = {(kind.api_version, kind.kind): kind for kind in (RAY_CLUSTER, SECRET, *LISTED_CHILDREN)}


def kind_of(api_version: str, kind: str) -> Kind:
    """Return one of the kinds that the operator writes; raise ``Rejected`` for others."""
    try:
        return _WRITTEN[api_version, kind]
    except KeyError:
        raise Rejected(f"{kind} of {api_version} is not a kind that the operator writes") from None


def kind_of_document(document: Mapping[str, Any]) -> Kind:
    return kind_of(str(document.get("apiVersion")), str(document.get("kind")))
