"""The external Ray of a deployment, if it names one, and the token that its Ray requires."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo_operator.kube.client import Kube
from octavo_operator.model import names
from octavo_operator.model.desired import address_of
from octavo_operator.model.observed import Key, Resource


@dataclass(frozen=True, slots=True)
class ExternalRay:
    """Address of an external Ray. ``token`` names a Secret and its key."""

    address: str
    token: tuple[str, str] | None


def external_ray(resource: Resource) -> ExternalRay | None:
    """Return the external Ray of the deployment, None in managed mode.

    Read the raw document: a deployment whose spec this version does not understand can be deleted as well.
    """
    found: Any = (resource.document.get("spec") or {}).get("rayCluster") or {}
    external = found.get("external") if isinstance(found, Mapping) else None
    if not isinstance(external, Mapping) or not isinstance(url := external.get("dashboardURL"), str):
        return None
    reference = external.get("authSecretRef")
    if not isinstance(reference, Mapping) or not isinstance(name := reference.get("name"), str):
        return ExternalRay(address_of(url), None)
    return ExternalRay(address_of(url), (name, str(reference.get("key") or names.AUTH_TOKEN_KEY)))


class RayTokens:
    """Reader of Ray tokens. It reads the Secret again at each use.

    It remembers the last token of an external Ray for the deployment's own deletion. Kubernetes deletes the Secrets of
    a deleted namespace in any order. The token goes only to that address and is written nowhere. A restart forgets it.
    """

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._last: dict[Key, tuple[str, ExternalRay, str]] = {}
        """Last token by deployment, with the deployment's uid and the Ray of the token."""

    async def token_for(self, resource: Resource) -> str | None:
        """Return the token of the deployment's Ray, None if the Ray needs none or none exists."""
        key, external = resource.key, external_ray(resource)
        if external is None:
            return await self._read(key, names.token_secret(key), names.AUTH_TOKEN_KEY)
        if external.token is None:
            return None
        token = await self._read(key, *external.token)
        if token is not None:
            self._last[key] = resource.uid, external, token
        elif resource.deleted_at is not None and key in self._last:
            uid, ray, last = self._last[key]
            return last if (uid, ray) == (resource.uid, external) else None
        return token

    def forget(self, key: Key) -> None:
        self._last.pop(key, None)

    async def _read(self, key: Key, secret: str, value: str) -> str | None:
        found = await self._kube.get_secret_value(key.namespace, secret, value)
        return None if found is None else _header_value(found)


def _header_value(value: bytes) -> str | None:
    """Return the token without white space around it, None if no HTTP header can carry it.

    The most common mistake is a line break at its end.
    """
    try:
        text = value.decode("ascii").strip()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() and text else None
