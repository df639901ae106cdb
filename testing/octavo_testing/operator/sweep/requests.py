"""Requests to the model of the API server: path, query and body in, a document or an ``ApiError`` out.

Both faces of the model use this module: ``sweep.apiclient`` in process, ``fakes.api_http`` over HTTP.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from octavo_operator.model import kinds
from octavo_operator.model.kinds import Kind
from octavo_testing.operator.sweep.apiserver import ApiError, ApiServer, Document, ObjectKey, causes

CRDS = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")
NAMESPACES = Kind("", "v1", "namespaces", "Namespace")
KINDS = (
    kinds.SERVING_DEPLOYMENT,
    kinds.RAY_CLUSTER,
    kinds.SERVICE,
    kinds.SECRET,
    kinds.CLAIM,
    kinds.EVENT,
    kinds.DISRUPTION_BUDGET,
    kinds.NETWORK_POLICY,
    kinds.ENDPOINT_SLICE,
    CRDS,
    NAMESPACES,
)
BY_PLURAL = {kind.plural: kind for kind in KINDS}
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


class Call(NamedTuple):
    """One request. ``verb`` is Kubernetes' word for RBAC."""

    verb: str
    method: str
    path: str
    plural: str
    namespace: str
    name: str
    subresource: str

    @property
    def kind(self) -> Kind:
        return BY_PLURAL[self.plural]


def parse(method: str, path: str, *, watch: bool = False) -> Call | None:
    """Read the path of a request, None if the server does not know it."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if len(parts) > 2 and parts[0] == "namespaces":
        namespace, parts = parts[1], parts[2:]
    if not parts or parts[0] not in BY_PLURAL:
        return None
    plural, name, subresource = (*parts, "", "")[:3]
    reads = "get" if name else "watch" if watch else "list"
    verb = {"GET": reads, "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]
    return Call(verb, method, path, plural, namespace, name, subresource)


def handle(api: ApiServer, call: Call, query: Mapping[str, str], body: Any, content_type: str) -> Document:
    """Execute a request and return the answer; raise an ``ApiError``."""
    key = ObjectKey(call.kind.kind, call.namespace, call.name)
    manager = query.get("fieldManager", "unknown")
    match call.verb, content_type:
        case "list", _:
            return _list(api, call, query)
        case "get", _:
            if (found := api.get(*key)) is None:
                raise ApiError(404, f"{call.plural} {call.name!r} not found", "NotFound")
            return found
        case "create", _:
            metadata = {**body.get("metadata", {}), "namespace": call.namespace}
            if "generateName" in metadata:
                metadata["name"] = f"{metadata.pop('generateName')}{api.next_version()}"
            created = {**body, "kind": call.kind.kind, "metadata": metadata}
            return api.create(manager, created, dry_run=query.get("dryRun") == "All")
        case "patch", "application/apply-patch+yaml":
            assert (call.subresource, query.get("force")) == ("", "true")
            metadata = {**body["metadata"], "namespace": call.namespace}
            return api.apply(manager, {**body, "metadata": metadata})
        case "patch", "application/merge-patch+json":
            return api.merge_patch(key, body, status=call.subresource == "status")
        case "patch", "application/json-patch+json":
            return api.json_patch(key, body)
        case "delete", _:
            api.delete(*key, (body or {}).get("preconditions", {}).get("uid"))
            return {"kind": "Status", "status": "Success"}
    raise AssertionError(f"the model has no {call} as {content_type}")


def _list(api: ApiServer, call: Call, query: Mapping[str, str]) -> Document:
    selected = selector(query.get("labelSelector", ""))
    items = [item for item in api.listed(call.kind.kind, call.namespace or None) if selected(labels_of(item))]
    metadata: Document = {"resourceVersion": api.version}
    if "limit" in query:
        start, limit = int(query.get("continue", "0")), int(query["limit"])
        if start + limit < len(items):
            metadata["continue"] = str(start + limit)
        items = items[start : start + limit]
    # Items of a list carry neither kind nor apiVersion.
    bare = [{name: value for name, value in item.items() if name not in ("kind", "apiVersion")} for item in items]
    return {"kind": f"{call.kind.kind}List", "apiVersion": call.kind.api_version, "metadata": metadata, "items": bare}


def discovery(api: ApiServer, path: str) -> Document | None:
    """Return the answer to a request about groups and kinds, None for another path."""
    installed = [kind for kind in KINDS if kind.kind not in api.kinds_missing]
    match path.strip("/").split("/"):
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        case ["api", "v1"]:
            return _resources([kind for kind in installed if not kind.group])
        case ["apis"]:
            groups = {kind.group: kind.version for kind in installed if kind.group}
            return {"kind": "APIGroupList", "groups": [_group(*item) for item in groups.items()]}
        case ["apis", group, version]:
            found = [kind for kind in installed if (kind.group, kind.version) == (group, version)]
            return _resources(found) if found else None
    return None


def failure(error: ApiError, call: Call | None) -> Document:
    """Return the Status that the server answers."""
    details: Document = {}
    # A JSON patch that does not fit names no object.
    if call is not None and error.cause != "PatchFailed":
        name = call.name or (call.namespace if error.code == 404 else "")
        details = {"kind": call.plural, "name": name} if name else {"kind": call.plural}
    if found := causes(error):
        details["causes"] = found
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": str(error),
        "reason": error.cause if error.cause != "NamespaceTerminating" else "Forbidden",
        "details": details,
        "code": error.code,
    }


def selector(text: str) -> Callable[[Mapping[str, str]], bool]:
    """Return the predicate on labels of a label selector with ``name`` and ``name=value`` terms."""
    terms = [term.replace("==", "=").partition("=") for term in text.split(",") if term]
    return lambda labels: all(name in labels and (not sign or labels[name] == value) for name, sign, value in terms)


def labels_of(document: Document) -> dict[str, str]:
    return dict(document["metadata"].get("labels") or {})


def _group(name: str, version: str) -> Document:
    known = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [known], "preferredVersion": known}


def _resources(installed: list[Kind]) -> Document:
    resources = [
        {
            "name": kind.plural,
            "singularName": kind.kind.lower(),
            "kind": kind.kind,
            "namespaced": kind not in (CRDS, NAMESPACES),
            "verbs": _VERBS,
        }
        for kind in installed
    ]
    return {"kind": "APIResourceList", "resources": resources}
