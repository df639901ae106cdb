"""What the operator asks of Kubernetes. Every call is idempotent, or guarded by a uid or a resource version."""

import base64
import binascii
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from octavo_operator.kube.api import APPLY_PATCH, JSON, JSON_PATCH, MERGE_PATCH, Api
from octavo_operator.kube.concurrent import together
from octavo_operator.kube.errors import Conflict, Forbidden, KindMissing, NamespaceTerminating, NotFound, Rejected
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
    """What the operator made for one deployment; ``objects`` by kind and name, a Secret without its values."""

    kuberay_installed: bool
    clusters: tuple[Mapping[str, Any], ...]
    objects: Mapping[tuple[str, str], Mapping[str, Any]]


class Kube:
    """``namespaces`` are those that the operator serves, none for all. Calls raise a ``KubeError``."""

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
        """Returns all deployments that the operator serves."""
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

    async def served(self, kind: Kind) -> bool:
        """Whether the API server knows the kind now."""
        try:
            answer = await self._api.call("GET", kind.root)
        except (KindMissing, NotFound):
            return False
        return any(resource.get("name") == kind.plural for resource in answer.get("resources", ()))

    async def list_children(self, key: Key) -> Children:
        """Lists by label what belongs to ``key``, and reads its token Secret by name: no right to list Secrets."""
        clusters, token, *listed = await together(
            self._list_clusters(key),
            self.secret(key.namespace, names.token_secret(key)),
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
        """Returns how many pods behind a Service are ready."""
        query = {"labelSelector": f"kubernetes.io/service-name={service}"}
        answer = await self._api.call("GET", kinds.ENDPOINT_SLICE.path(namespace), query=query)
        ready = {
            (endpoint.get("targetRef") or {}).get("uid") or tuple(endpoint.get("addresses") or ())
            for item in answer.get("items", ())
            for endpoint in item.get("endpoints") or ()
            if (endpoint.get("conditions") or {}).get("ready") is not False
        }
        return len(ready)

    async def secret(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Returns a Secret's metadata and its ``keys``, sorted, without values; None where it does not exist."""
        document = await self._get(kinds.SECRET, namespace, name)
        if document is None:
            return None
        keys = sorted(document.get("data") or {})
        kind = {"apiVersion": kinds.SECRET.api_version, "kind": kinds.SECRET.kind}
        return {**kind, "metadata": _trimmed(document)["metadata"], "type": document.get("type"), "keys": keys}

    async def secret_value(self, namespace: str, name: str, key: str) -> bytes | None:
        """Returns None where the Secret or the key does not exist. The value goes to its place of use, nowhere else."""
        document = await self._get(kinds.SECRET, namespace, name)
        value = ((document or {}).get("data") or {}).get(key)
        try:
            return None if value is None else base64.b64decode(value, validate=True)
        except binascii.Error:
            return None

    async def claim_exists(self, namespace: str, name: str) -> bool:
        return await self._get(kinds.CLAIM, namespace, name) is not None

    async def child(self, kind: Kind, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Returns an object whoever's it is, a Secret without its values; None where it, or its kind, is not there."""
        if kind == kinds.SECRET:
            return await self.secret(namespace, name)
        try:
            found = await self._get(kind, namespace, name)
        except KindMissing:
            return None
        return None if found is None else _trimmed(found)

    async def apply(self, namespace: str, document: Mapping[str, Any], uid: str = "") -> None:
        """Makes the object, or applies it whole to that of ``uid``; what others own in that stays.

        Raises ``Conflict`` where another object has the name: nothing is forced upon one that was not seen to be ours.
        """
        kind, metadata = kind_of_document(document), document["metadata"]
        if not uid:
            applied = kind in kinds.LISTED_CHILDREN
            # What is created is never pruned by a later apply, and of annotations the spec may take some away.
            bare = {name: value for name, value in metadata.items() if not applied or name != "annotations"}
            uid = (await self._create(kind, namespace, {**document, "metadata": bare}))["metadata"]["uid"]
            if not applied:
                return
        await self._apply(kind, namespace, {**document, "metadata": {**metadata, "uid": uid}})

    async def patch_cluster(self, namespace: str, patch: PatchCluster) -> None:
        """Raises ``Conflict`` where one of the patch's tests fails, ``NotFound`` where the cluster is gone."""
        await self._json_patch(kinds.RAY_CLUSTER, namespace, patch)

    async def patch_service(self, namespace: str, patch: PatchService) -> None:
        """Raises ``Conflict`` where one of the patch's tests fails, ``NotFound`` where the Service is gone."""
        await self._json_patch(kinds.SERVICE, namespace, patch)

    async def create_secret(self, namespace: str, document: Mapping[str, Any], keys: Sequence[str]) -> None:
        """Creates a Secret with a random value for each key; raises ``Conflict`` where one of that name exists."""
        kind = kind_of_document(document)
        values = {key: secrets.token_urlsafe(_SECRET_BYTES) for key in keys}
        await self._create(kind, namespace, {**document, "stringData": values})

    async def delete(self, namespace: str, delete: Delete) -> None:
        """Deletes in the background; nothing where it is gone or another object has its name."""
        path = kind_of(delete.api_version, delete.kind).path(namespace, delete.name)
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        try:
            await self._api.call("DELETE", path, body={**options, "preconditions": {"uid": delete.uid}})
        except (NotFound, KindMissing, Conflict):
            return

    async def patch_status(self, resource: Resource, status: Mapping[str, Any]) -> Resource:
        """Makes ``status`` the whole status; raises ``Conflict`` where the resource has changed since it was read."""
        patch = {
            "metadata": {"resourceVersion": resource.resource_version},
            "status": merge_patch(resource.status, status),
        }
        return await self._patch(resource, patch, subresource="status")

    async def set_finalizer(self, resource: Resource, finalizer: str, *, present: bool) -> Resource | None:
        """Returns the resource as it is then, None where it is gone with its last finalizer; raises ``Conflict``."""
        if (finalizer in resource.finalizers) == present:
            return resource
        kept = [name for name in resource.finalizers if name != finalizer]
        wanted = [*kept, finalizer] if present else kept
        patch = {"metadata": {"resourceVersion": resource.resource_version, "finalizers": wanted}}
        try:
            updated = await self._patch(resource, patch)
        except NotFound:
            return None
        return None if updated.deleted_at is not None and not updated.finalizers else updated

    async def namespace_ends(self, namespace: str) -> bool:
        """Whether nothing can be made in a namespace any more; asked by making nothing, so without rights on it."""
        metadata = {"namespace": namespace, "generateName": "octavo-operator-"}
        event = {"apiVersion": kinds.EVENT.api_version, "kind": kinds.EVENT.kind, "metadata": metadata}
        body = {**event, "involvedObject": {"namespace": namespace}}
        try:
            await self._api.call("POST", kinds.EVENT.path(namespace), query={"dryRun": "All"}, body=body)
        except NamespaceTerminating:
            return True
        except (Forbidden, Rejected, Conflict):
            pass  # whoever refuses it for another reason keeps no deletion from its deadline
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
    """Reads a ServingDeployment as the API server gives it."""
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
    """Reads Kubernetes' RFC 3339 times."""
    return None if value is None else datetime.fromisoformat(value).timestamp()


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON merge patch (RFC 7396) that makes ``new`` of ``old``: what is gone is null."""
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
    """Leaves out ``managedFields``, which are longer than the rest and decide nothing here."""
    metadata = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
    return {**document, "metadata": metadata}
