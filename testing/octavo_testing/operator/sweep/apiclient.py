"""The operator's connection to the API server of this world: by paths, like the real one, with faults and an end."""

import asyncio
import json
import random
from collections.abc import Mapping
from typing import Any

from octavo_operator.kube.errors import KindMissing, Unavailable, error_of
from octavo_testing.operator.sweep.apiserver import ApiError, Document, ObjectKey, causes
from octavo_testing.operator.sweep.faults import Fault, Faults
from octavo_testing.operator.sweep.world import World

KINDS = {
    "servingdeployments": "ServingDeployment",
    "rayclusters": "RayCluster",
    "services": "Service",
    "secrets": "Secret",
    "events": "Event",
    "poddisruptionbudgets": "PodDisruptionBudget",
    "networkpolicies": "NetworkPolicy",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "endpointslices": "EndpointSlice",
    "configmaps": "ConfigMap",
}
GROUP_ROOTS = {"/apis/ray.io/v1": "RayCluster", "/apis/serving.octavo.dev/v1alpha1": "ServingDeployment"}


class Killed(BaseException):
    """The operator's process is gone; nothing of it runs on."""


class Life:
    """One process of the operator: counts its effects, and ends before the call after effect ``last``."""

    def __init__(self, last: int | None = None) -> None:
        self.last = last
        self.effects = 0
        self.dead = asyncio.Event()

    def check(self) -> None:
        if self.dead.is_set():
            raise Killed

    def effect(self) -> None:
        """Counts one that has just happened."""
        self.effects += 1
        if self.last is not None and self.effects >= self.last:
            self.dead.set()
            raise Killed

    def kill(self) -> None:
        self.dead.set()


class ApiClient:
    """Implements ``octavo_operator.kube.api.Api``."""

    def __init__(
        self, world: World, life: Life, faults: Faults, rng: random.Random, writes: list[tuple[float, str, str]]
    ) -> None:
        self._world, self._life, self._faults, self._rng = world, life, faults, rng
        self._writes = writes
        """Time, method and path of each that changed or could have changed something."""

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> dict[str, Any]:
        self._life.check()
        await asyncio.sleep(self._rng.uniform(0.001, 0.02))
        self._life.check()
        call = f"{method} {path}"
        fault = self._faults.draw()
        if fault is Fault.SLOW:
            await asyncio.sleep(self._rng.uniform(1, 25))
            self._life.check()
        elif fault is not None and fault is not Fault.LOST and (fault is not Fault.CONFLICT or method != "GET"):
            self._world.say(f"  {call}: {fault}")
            raise _failure(call, fault)
        try:
            sent = json.loads(json.dumps(body))  # as it goes over the wire
            answer = self._serve(method, path, dict(query or {}), sent, content_type)
        except ApiError as error:
            raise _error(call, error, path) from None
        if method != "GET":
            self._writes.append((self._world.now, method, path))
            self._world.say(f"  {call}")
            self._life.effect()
        if fault is Fault.LOST:
            raise Unavailable(f"{call}: connection reset by peer")
        return _partial(answer) if "PartialObjectMetadata" in accept else answer

    def _serve(self, method: str, path: str, query: dict[str, str], body: Any, content_type: str) -> Document:
        api = self._world.api
        if path in GROUP_ROOTS:
            if (kind := GROUP_ROOTS[path]) in api.kinds_missing:
                raise ApiError(404, f"{path} is not served", "KindMissing")
            return {"kind": "APIResourceList", "resources": [{"name": f"{kind.lower()}s", "kind": kind}]}
        kind, namespace, name, subresource = parse(path)
        if method == "GET" and not name:
            if kind == "EndpointSlice":
                items = self._slices(namespace, query)
            else:
                labels, present = _selector(query.get("labelSelector", ""))
                items = [
                    found
                    for found in api.listed(kind, namespace or None, labels)
                    if present <= found["metadata"].get("labels", {}).keys()
                ]
            return {"kind": f"{kind}List", "metadata": {"resourceVersion": "1"}, "items": items}
        key = ObjectKey(kind, namespace, name)
        match method, content_type:
            case "GET", _:
                if (found := api.get(*key)) is None:
                    raise ApiError(404, f"{kind} {name} not found", "NotFound")
                return found
            case "POST", _:
                metadata = {**body.get("metadata", {}), "namespace": namespace}
                if "generateName" in metadata:
                    metadata["name"] = f"{metadata.pop('generateName')}{self._rng.getrandbits(40):x}"
                made = {**body, "kind": kind, "metadata": metadata}
                return api.create("octavo-operator", made, dry_run=query.get("dryRun") == "All")
            case "PATCH", "application/apply-patch+yaml":
                assert subresource == ""
                assert query.get("force") == "true"
                return api.apply(query["fieldManager"], body)
            case "PATCH", "application/merge-patch+json":
                return api.merge_patch(key, body, status=subresource == "status")
            case "PATCH", "application/json-patch+json":
                return api.json_patch(key, body)
            case "PUT", _ if subresource == "status":
                return api.patch_status(key, body["status"], body["metadata"].get("resourceVersion"))
            case "DELETE", _:
                preconditions = (body or {}).get("preconditions", {})
                api.delete(*key, preconditions.get("uid"))
                return {}
        raise AssertionError(f"{method} {path} as {content_type}: not thought of")

    def _slices(self, namespace: str, query: Mapping[str, str]) -> list[Document]:
        labels, _ = _selector(query.get("labelSelector", ""))
        ready = self._world.ready_gateways(namespace, labels["kubernetes.io/service-name"])
        endpoints = [
            {"addresses": [f"10.1.0.{number}"], "conditions": {"ready": True, "serving": True, "terminating": False}}
            for number in range(ready)
        ]
        return [{"metadata": {"name": "slice", "namespace": namespace}, "endpoints": endpoints}] if endpoints else []


def parse(path: str) -> tuple[str, str, str, str]:
    """Returns kind, namespace, name and subresource, empty where the path has none."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if parts[0] == "namespaces":
        namespace, parts = parts[1], parts[2:]
    parts += [""] * (3 - len(parts))
    return KINDS[parts[0]], namespace, parts[1], parts[2]


def _selector(text: str) -> tuple[dict[str, str], set[str]]:
    """Returns the labels with their values, and those that must only be there."""
    parts = [part for part in text.split(",") if part]
    pairs = dict(part.replace("==", "=").split("=", 1) for part in parts if "=" in part)
    return pairs, {part for part in parts if "=" not in part}


def _partial(answer: Document) -> Document:
    if "items" in answer:
        return {**answer, "items": [_partial(item) for item in answer["items"]]}
    return {"kind": "PartialObjectMetadata", "metadata": answer["metadata"]}


def _failure(call: str, fault: Fault) -> Exception:
    match fault:
        case Fault.CONFLICT:
            return _error(call, ApiError(409, "the object has been modified", "Conflict"), "")
        case Fault.TOO_MANY:
            return error_of(call, 429, {"Retry-After": "2"}, b"")
        case Fault.SERVER:
            return error_of(call, 500, {}, b"etcdserver: leader changed")
    return Unavailable(f"{call}: connection reset by peer")


def _error(call: str, error: ApiError, path: str) -> Exception:
    if error.cause == "KindMissing":
        return KindMissing(f"{call}: {error}")
    # A JSON patch that does not fit names no object.
    details: Document = {} if error.cause == "PatchFailed" else {"name": path.rsplit("/", 1)[-1] or "object"}
    details["causes"] = causes(error)
    status = {"kind": "Status", "reason": error.cause, "message": str(error), "details": details}
    return error_of(call, error.code, {}, json.dumps(status).encode())
