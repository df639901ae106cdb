"""The operator's calls to Kubernetes. Every call is idempotent, or guarded by a uid or a resource version."""

import base64
import binascii
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from octavo_operator.kube.api import APPLY_PATCH, JSON, JSON_PATCH, MERGE_PATCH, Api
from octavo_operator.kube.errors import Conflict, Forbidden, KindMissing, NamespaceTerminating, NotFound, Rejected
from octavo_operator.kube.gather import gather_all
from octavo_operator.kube.written_kinds import kind_of, kind_of_document
from octavo_operator.model import kinds, names
from octavo_operator.model.actions import Delete, PatchCluster, PatchService
from octavo_operator.model.kinds import Kind
from octavo_operator.model.observed import Key, Resource

_PAGE = 500
_METADATA_ONLY = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{JSON}"
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Children:
    """Objects that the operator created for one deployment.

    ``objects`` are by kind and name. A Secret is without its values.
    """

    kuberay_installed: bool
    clusters: tuple[Mapping[str, Any], ...]
    objects: Mapping[tuple[str, str], Mapping[str, Any]]


class Kube:
    """Client for Kubernetes. Calls raise a ``KubeError``.

    ``namespaces`` are the namespaces that the operator serves; all if empty.
    """

    def __init__(self, api: Api, namespaces: Sequence[str] = ()) -> None:
        self._api = api
        self._namespaces: tuple[str | None, ...] = tuple(namespaces) or (None,)

    async def get_resource(self, key: Key) -> Resource | None:
        path = kinds.SERVING_DEPLOYMENT.path(key.namespace, key.name)
        try:
            return resource_of(await self._api.call("GET", path))
        except NotFound:
            return None

    async def list_keys(self) -> tuple[Key, ...]:
        """Return the keys of all deployments that the operator serves."""
        found: list[Key] = []
        for namespace in self._namespaces:
            path = kinds.SERVING_DEPLOYMENT.path(namespace)
            query = {"limit": str(_PAGE)}
            while True:
                page = await self._api.call("GET", path, query=query, accept=_METADATA_ONLY)
                items = (item["metadata"] for item in page.get("items", ()))
                found.extend(Key(item["namespace"], item["name"]) for item in items)
                if not (token := page.get("metadata", {}).get("continue")):
                    break
                query = {"limit": str(_PAGE), "continue": token}
        return tuple(found)

    async def kind_installed(self, kind: Kind) -> bool:
        """Return True if the API server knows the kind."""
        try:
            answer = await self._api.call("GET", kind.root)
        except (KindMissing, NotFound):
            return False
        return any(resource.get("name") == kind.plural for resource in answer.get("resources", ()))

    async def list_children(self, key: Key) -> Children:
        """List the children of ``key`` by label. Read its token Secret by name, which needs no list right."""
        clusters, token, *listed = await gather_all(
            self._list_clusters(key),
            self.get_secret(key.namespace, names.token_secret(key)),
            *(self._list(kind, key) for kind in kinds.LISTED_CHILDREN),
        )
        objects = {
            (kind.kind, item["metadata"]["name"]): {"apiVersion": kind.api_version, "kind": kind.kind, **item}
            for kind, items in zip(kinds.LISTED_CHILDREN, listed, strict=True)
            for item in items
        }
        if token is not None and _label(token) == key.name:
            objects["Secret", token["metadata"]["name"]] = token
        return Children(clusters is not None, tuple(clusters or ()), objects)

    async def ready_endpoints(self, namespace: str, service: str) -> int:
        """Return the number of ready pods behind a Service."""
        query = {"labelSelector": f"kubernetes.io/service-name={service}"}
        answer = await self._api.call("GET", kinds.ENDPOINT_SLICE.path(namespace), query=query)
        ready = {
            (endpoint.get("targetRef") or {}).get("uid") or tuple(endpoint.get("addresses") or ())
            for item in answer.get("items", ())
            for endpoint in item.get("endpoints") or ()
            if (endpoint.get("conditions") or {}).get("ready") is not False
        }
        return len(ready)

    async def get_secret(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return a Secret's metadata and its ``keys``, sorted, without values; None if it does not exist."""
        document = await self._get(kinds.SECRET, namespace, name)
        if document is None:
            return None
        keys = sorted(document.get("data") or {})
        kind = {"apiVersion": kinds.SECRET.api_version, "kind": kinds.SECRET.kind}
        return {**kind, "metadata": _trimmed(document)["metadata"], "type": document.get("type"), "keys": keys}

    async def get_secret_value(self, namespace: str, name: str, key: str) -> bytes | None:
        """Return one value, None if the Secret or the key does not exist. Pass the value only to its place of use."""
        document = await self._get(kinds.SECRET, namespace, name)
        value = ((document or {}).get("data") or {}).get(key)
        try:
            return None if value is None else base64.b64decode(value, validate=True)
        except binascii.Error:
            return None

    async def claim_exists(self, namespace: str, name: str) -> bool:
        return await self._get(kinds.CLAIM, namespace, name) is not None

    async def get_child(self, kind: Kind, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Return an object of any owner, a Secret without its values; None if it, or its kind, does not exist."""
        if kind == kinds.SECRET:
            return await self.get_secret(namespace, name)
        try:
            found = await self._get(kind, namespace, name)
        except KindMissing:
            return None
        return None if found is None else _trimmed(found)

    async def apply(self, namespace: str, document: Mapping[str, Any], uid: str = "") -> None:
        """Create the object, or apply it whole to the object of ``uid``; other owners' fields stay.

        Raise ``Conflict`` if another object has the name. The operator forces no fields on an
        object that it has not observed as its own.
        """
        kind, metadata = kind_of_document(document), document["metadata"]
        if not uid:
            applied = kind in kinds.LISTED_CHILDREN
            # A later apply never prunes fields of a create. The spec may remove annotations later, so only the apply
            # has them.
            bare = {name: value for name, value in metadata.items() if not applied or name != "annotations"}
            uid = (await self._create(kind, namespace, {**document, "metadata": bare}))["metadata"]["uid"]
            if not applied:
                return
        await self._apply(kind, namespace, {**document, "metadata": {**metadata, "uid": uid}})

    async def patch_cluster(self, namespace: str, patch: PatchCluster) -> None:
        """Patch a RayCluster; raise ``Conflict`` if a test of the patch fails, ``NotFound`` if the cluster is gone."""
        await self._json_patch(kinds.RAY_CLUSTER, namespace, patch)

    async def patch_service(self, namespace: str, patch: PatchService) -> None:
        """Patch a Service; raise ``Conflict`` if a test of the patch fails, ``NotFound`` if the Service is gone."""
        await self._json_patch(kinds.SERVICE, namespace, patch)

    async def create_secret(self, namespace: str, document: Mapping[str, Any], keys: Sequence[str]) -> None:
        """Create a Secret with a random value for each key; raise ``Conflict`` if one of that name exists."""
        kind = kind_of_document(document)
        values = {key: secrets.token_urlsafe(_SECRET_BYTES) for key in keys}
        await self._create(kind, namespace, {**document, "stringData": values})

    async def delete(self, namespace: str, delete: Delete) -> None:
        """Delete an object in the background; do nothing if it is gone or another object has its name."""
        path = kind_of(delete.api_version, delete.kind).path(namespace, delete.name)
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        try:
            await self._api.call("DELETE", path, body={**options, "preconditions": {"uid": delete.uid}})
        except (NotFound, KindMissing, Conflict):
            return

    async def patch_status(self, resource: Resource, status: Mapping[str, Any]) -> Resource:
        """Make ``status`` the whole status; raise ``Conflict`` if the resource has changed since it was read."""
        patch = {
            "metadata": {"resourceVersion": resource.resource_version},
            "status": merge_patch(resource.status, status),
        }
        return await self._patch(resource, patch, subresource="status")

    async def set_finalizer(self, resource: Resource, finalizer: str, *, present: bool) -> Resource | None:
        """Add or remove ``finalizer``; return the updated resource, None if it is gone with its last finalizer.

        Raise ``Conflict`` if the resource has changed since it was read.
        """
        if (finalizer in resource.finalizers) == present:
            return resource
        kept = [name for name in resource.finalizers if name != finalizer]
        updated_list = [*kept, finalizer] if present else kept
        patch = {"metadata": {"resourceVersion": resource.resource_version, "finalizers": updated_list}}
        try:
            updated = await self._patch(resource, patch)
        except NotFound:
            return None
        return None if updated.deleted_at is not None and not updated.finalizers else updated

    async def namespace_terminating(self, namespace: str) -> bool:
        """Return True if no object can be created in a namespace any more.

        The request is a dry run that creates nothing, so the operator needs no right on the namespace itself.
        """
        metadata = {"namespace": namespace, "generateName": "octavo-operator-"}
        event = {"apiVersion": kinds.EVENT.api_version, "kind": kinds.EVENT.kind, "metadata": metadata}
        body = {**event, "involvedObject": {"namespace": namespace}}
        try:
            await self._api.call("POST", kinds.EVENT.path(namespace), query={"dryRun": "All"}, body=body)
        except NamespaceTerminating:
            return True
        except (Forbidden, Rejected, Conflict):
            pass  # a refusal for another reason keeps no deletion past its deadline
        return False

    async def apply_event(self, namespace: str, document: Mapping[str, Any]) -> None:
        await self._apply(kinds.EVENT, namespace, document)

    async def _json_patch(self, kind: Kind, namespace: str, patch: PatchCluster | PatchService) -> None:
        query = {"fieldManager": names.FIELD_MANAGER}
        operations = [dict(operation) for operation in patch.operations]
        path = kind.path(namespace, patch.name)
        await self._api.call("PATCH", path, query=query, body=operations, content_type=JSON_PATCH)

    async def _create(self, kind: Kind, namespace: str, document: Mapping[str, Any]) -> dict[str, Any]:
        query = {"fieldManager": names.FIELD_MANAGER}
        return await self._api.call("POST", kind.path(namespace), query=query, body=dict(document))

    async def _apply(self, kind: Kind, namespace: str, document: Mapping[str, Any]) -> None:
        path = kind.path(namespace, document["metadata"]["name"])
        query = {"fieldManager": names.FIELD_MANAGER, "force": "true"}
        await self._api.call("PATCH", path, query=query, body=dict(document), content_type=APPLY_PATCH)

    async def _patch(self, resource: Resource, patch: Mapping[str, Any], subresource: str = "") -> Resource:
        path = kinds.SERVING_DEPLOYMENT.path(resource.key.namespace, resource.key.name, subresource)
        query = {"fieldManager": names.FIELD_MANAGER}
        body = dict(patch)
        return resource_of(await self._api.call("PATCH", path, query=query, body=body, content_type=MERGE_PATCH))

    async def _get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        try:
            return await self._api.call("GET", kind.path(namespace, name))
        except NotFound:
            return None

    async def _list_clusters(self, key: Key) -> list[dict[str, Any]] | None:
        try:
            return await self._list(kinds.RAY_CLUSTER, key)
        except (KindMissing, NotFound):
            return None

    async def _list(self, kind: Kind, key: Key) -> list[dict[str, Any]]:
        query = {"labelSelector": f"{names.DEPLOYMENT_LABEL}={key.name}"}
        answer = await self._api.call("GET", kind.path(key.namespace), query=query)
        return [_trimmed(item) for item in answer.get("items", ())]


def resource_of(document: Mapping[str, Any]) -> Resource:
    """Read a ServingDeployment from the API server's document."""
    metadata = document["metadata"]
    return Resource(
        key=Key(metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        generation=int(metadata.get("generation", 1)),
        resource_version=metadata["resourceVersion"],
        created_at=unix_time(metadata.get("creationTimestamp")) or 0.0,
        deleted_at=unix_time(metadata.get("deletionTimestamp")),
        finalizers=tuple(metadata.get("finalizers") or ()),
        annotations=metadata.get("annotations") or {},
        document=_trimmed(document),
        status=document.get("status") or {},
    )


def unix_time(value: str | None) -> float | None:
    """Convert Kubernetes' RFC 3339 time to Unix time."""
    return None if value is None else datetime.fromisoformat(value).timestamp()


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch (RFC 7396) from ``old`` to ``new``. Removed members are null."""
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := merge_patch(before, value):
                patch[name] = inner
        elif name not in old or value != before:
            patch[name] = value
    return patch


def _label(document: Mapping[str, Any]) -> str | None:
    label = (document["metadata"].get("labels") or {}).get(names.DEPLOYMENT_LABEL)
    return None if label is None else str(label)


def _trimmed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out ``managedFields``, which are longer than the rest and decide nothing here."""
    metadata = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
    return {**document, "metadata": metadata}
