"""A kube-apiserver with its garbage collector and namespace controller, as far as an operator can tell."""

import base64
import marshal
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from octavo_api.schema.crd import schema
from octavo_testing.operator.sweep.clock import Timeline

Document = dict[str, Any]

STATUS_SUBRESOURCE = frozenset({"ServingDeployment", "RayCluster", "PodDisruptionBudget", "Service"})
_SCHEMA = {"properties": {"spec": schema()["properties"]["spec"]}}
_ATOMIC = frozenset({"selector", "podSelector", "matchLabels"})
"""Maps that are one value for server-side apply."""
_REDIS_FINALIZER = "ray.io/gcs-ft-redis-cleanup-finalizer"


class ObjectKey(NamedTuple):
    kind: str
    namespace: str
    name: str


class ApiError(Exception):
    """What the server answers instead; ``code`` is HTTP's, ``cause`` Kubernetes'."""

    def __init__(self, code: int, message: str, cause: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.cause = cause


def causes(error: ApiError) -> list[dict[str, str]]:
    """As a Status lists them in its details."""
    match error.cause:
        case "NamespaceTerminating":
            return [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]
        case "UidChanged":
            return [{"reason": "FieldValueInvalid", "field": "metadata.uid"}]
    return []


class ApiServer:
    """Objects with generations, resource versions, field owners, finalizers and owners."""

    def __init__(self, timeline: Timeline, rng: random.Random) -> None:
        self.timeline = timeline
        self.objects: dict[ObjectKey, Document] = {}
        self.applied: dict[ObjectKey, dict[str, Document]] = {}
        self.namespaces: dict[str, bool] = {}
        """Value: whether it is being terminated."""
        self.kinds_missing: set[str] = set()
        self.watchers: list[Callable[[str, Document], None]] = []
        """Called with ADDED, MODIFIED or DELETED and the object, after each change."""
        self._rng = rng
        self._version = 1000
        self._uids = 0

    # Reading

    def get(self, kind: str, namespace: str, name: str) -> Document | None:
        self._served(kind)
        found = self.objects.get(ObjectKey(kind, namespace, name))
        return None if found is None else clone(found)

    def listed(
        self, kind: str, namespace: str | None = None, labels: Mapping[str, str] | None = None
    ) -> list[Document]:
        self._served(kind)
        return [clone(found) for found in self.every(kind, namespace) if _labelled(found, labels or {})]

    def every(self, kind: str, namespace: str | None = None) -> Iterator[Document]:
        """The objects themselves, in no copy."""
        for key, found in list(self.objects.items()):
            if key.kind == kind and namespace in (None, key.namespace):
                yield found

    # Writing

    def create(self, manager: str, document: Mapping[str, Any], *, dry_run: bool = False) -> Document:
        """What is created and not applied is another manager's for later applies, of whatever name."""
        return self._create(f"{manager} by create", document, dry_run=dry_run)

    def _create(self, manager: str, document: Mapping[str, Any], *, dry_run: bool = False) -> Document:
        key = _key(document)
        self._served(key.kind)
        if key in self.objects:
            raise ApiError(409, f"{key.name} already exists", "AlreadyExists")
        if key.namespace not in self.namespaces:
            raise ApiError(404, f"namespace {key.namespace} not found", "NotFound")
        if self.namespaces[key.namespace]:
            raise ApiError(403, f"namespace {key.namespace} is being terminated", "NamespaceTerminating")
        if dry_run:
            return clone(document)
        created: Document = clone(document)
        created.pop("status", None) if key.kind in STATUS_SUBRESOURCE else None
        self._uids += 1
        created["metadata"] |= {
            "uid": f"{key.kind.lower()}-{self._uids}",
            "creationTimestamp": self._stamp(),
            "resourceVersion": self.next_version(),
        }
        if key.kind != "Secret":
            created["metadata"]["generation"] = 1
        _default(created)
        self.objects[key] = created
        self.applied[key] = {manager: clone(document)}
        self._collect_if_orphaned(created)
        self._notify("ADDED", created)
        return clone(created)

    def apply(self, manager: str, document: Mapping[str, Any]) -> Document:
        """Server-side apply with force: what ``manager`` alone has, and leaves out now, goes; the rest stays."""
        key = _key(document)
        self._served(key.kind)
        uid = document["metadata"].get("uid")
        if (current := self.objects.get(key)) is None:
            if uid is not None:
                raise ApiError(409, f"uid mismatch: {uid}, and no existing object was found", "Conflict")
            return self._create(manager, document)
        if uid not in (None, current["metadata"]["uid"]):
            raise ApiError(422, f"metadata.uid: Invalid value: {uid}: field is immutable", "UidChanged")
        wanted, before = clone(current), self.applied[key].get(manager, {})
        for other, applied in self.applied[key].items():
            before = before if other == manager else _without(before, applied)
        _prune(wanted, before, document)
        _merge(wanted, document, before)
        self.applied[key][manager] = clone(document)
        return self._store(key, wanted)

    def edit(self, kind: str, namespace: str, name: str, change: Callable[[Document], None]) -> Document | None:
        """A read and an update of everything but the status, by somebody else."""
        key = ObjectKey(kind, namespace, name)
        if (current := self.objects.get(key)) is None:
            return None
        wanted = clone(current)
        change(wanted)
        return self._store(key, wanted)

    def patch_status(self, key: ObjectKey, status: Mapping[str, Any], version: str | None = None) -> Document:
        """Replaces the status; ``version`` is what it must have been read at."""
        self._served(key.kind)
        current = self._existing(key, version)
        wanted = clone(current)
        wanted["status"] = clone(status)
        return self._store(key, wanted)

    def merge_patch(self, key: ObjectKey, patch: Mapping[str, Any], *, status: bool) -> Document:
        """RFC 7386, guarded by ``metadata.resourceVersion`` where the patch has one; to the status, or to all else."""
        self._served(key.kind)
        current = self._existing(key, patch.get("metadata", {}).get("resourceVersion"))
        wanted = clone(current)
        if status:
            _merge_patch(wanted, {"status": patch.get("status")})
            return self._store(key, wanted)
        body = {name: value for name, value in patch.items() if name != "status" or key.kind not in STATUS_SUBRESOURCE}
        _merge_patch(wanted, body)
        wanted["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
        added = set(wanted["metadata"].get("finalizers") or ()) - set(current["metadata"].get("finalizers") or ())
        if "deletionTimestamp" in current["metadata"] and added:
            raise ApiError(403, "no new finalizers can be added if the object is being deleted", "Forbidden")
        stored = self._store(key, wanted)
        self._remove_if_finished(key)
        return stored

    def json_patch(self, key: ObjectKey, operations: Iterable[Mapping[str, Any]]) -> Document:
        """RFC 6902, of anything but the status; a test that fails is a conflict, as is a path that is not there."""
        self._served(key.kind)
        wanted = clone(self._existing(key, None))
        for operation in operations:
            _patch_one(wanted, operation)
        wanted["metadata"]["resourceVersion"] = self.objects[key]["metadata"]["resourceVersion"]
        return self._store(key, wanted)

    def set_finalizers(self, key: ObjectKey, finalizers: list[str], version: str | None = None) -> None:
        current = self._existing(key, version)
        before = current["metadata"].get("finalizers", [])
        if "deletionTimestamp" in current["metadata"] and set(finalizers) - set(before):
            raise ApiError(403, "no new finalizers can be added if the object is being deleted", "Forbidden")
        wanted = clone(current)
        wanted["metadata"]["finalizers"] = finalizers
        self._store(key, wanted)
        self._remove_if_finished(key)

    def delete(self, kind: str, namespace: str, name: str, uid: str | None = None) -> None:
        key = ObjectKey(kind, namespace, name)
        self._served(kind)
        current = self._existing(key, None)
        metadata = current["metadata"]
        if uid is not None and metadata["uid"] != uid:
            raise ApiError(409, f"uid in precondition {uid} is not {metadata['uid']}", "Conflict")
        if not metadata.get("finalizers"):
            self._remove(key)
        elif "deletionTimestamp" not in metadata:
            metadata |= {"deletionTimestamp": self._stamp(), "resourceVersion": self.next_version()}
            metadata["generation"] += 1
            self._notify("MODIFIED", current)

    def _remove_if_finished(self, key: ObjectKey) -> None:
        metadata = self.objects[key]["metadata"]
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            self._remove(key)

    # Namespaces and the garbage collector

    def delete_namespace(self, namespace: str) -> None:
        """Everything in it is deleted one by one, in any order; it goes when nothing is left."""
        if self.namespaces.get(namespace) is not False:
            return
        self.namespaces[namespace] = True
        keys = [key for key in self.objects if key.namespace == namespace]
        self._rng.shuffle(keys)
        for key in keys:
            self.timeline.after(self._rng.uniform(0, 5), self._delete_quietly, key, None)
        self.timeline.after(6, self._finish_namespace, namespace)

    def _finish_namespace(self, namespace: str) -> None:
        left = [key for key in self.objects if key.namespace == namespace]
        if not left:
            self.namespaces.pop(namespace, None)
            return
        for key in left:
            self._delete_quietly(key, None)
        self.timeline.after(5, self._finish_namespace, namespace)

    def _delete_quietly(self, key: ObjectKey, uid: str | None) -> None:
        if (found := self.objects.get(key)) is not None and uid in (None, found["metadata"]["uid"]):
            self.delete(*key)

    def _remove(self, key: ObjectKey) -> None:
        gone = self.objects.pop(key)
        self.applied.pop(key, None)
        uid = gone["metadata"]["uid"]
        for other, found in self.objects.items():
            if any(owner["uid"] == uid for owner in found["metadata"].get("ownerReferences", ())):
                self.timeline.after(self._rng.uniform(0.1, 5), self._delete_quietly, other, found["metadata"]["uid"])
        self._notify("DELETED", gone)

    def _collect_if_orphaned(self, created: Document) -> None:
        """The garbage collector deletes what was made for an owner that has gone since."""
        owners = [owner["uid"] for owner in created["metadata"].get("ownerReferences", ())]
        if owners and not {found["metadata"]["uid"] for found in self.objects.values()} & set(owners):
            self.timeline.after(
                self._rng.uniform(0.1, 5), self._delete_quietly, _key(created), created["metadata"]["uid"]
            )

    # Inside

    def _served(self, kind: str) -> None:
        if kind in self.kinds_missing:
            raise ApiError(404, f"the server could not find the requested resource ({kind})", "KindMissing")

    def _existing(self, key: ObjectKey, version: str | None) -> Document:
        if (current := self.objects.get(key)) is None:
            raise ApiError(404, f"{key.kind} {key.name} not found", "NotFound")
        if version is not None and current["metadata"]["resourceVersion"] != version:
            raise ApiError(409, f"the object {key.name} has been modified", "Conflict")
        return current

    def _store(self, key: ObjectKey, wanted: Document) -> Document:
        current = self.objects[key]
        _default(wanted)
        _validate(wanted)
        if wanted == current:
            return clone(current)
        if wanted.get("spec") != current.get("spec"):
            wanted["metadata"]["generation"] += 1
        wanted["metadata"]["resourceVersion"] = self.next_version()
        self.objects[key] = wanted
        self._notify("MODIFIED", wanted)
        return clone(wanted)

    def _notify(self, change: str, document: Document) -> None:
        for watcher in self.watchers:
            watcher(change, document)

    @property
    def version(self) -> str:
        """Resource version of the last change."""
        return str(self._version)

    def next_version(self) -> str:
        self._version += 1
        return str(self._version)

    def _stamp(self) -> str:
        return datetime.fromtimestamp(int(self.timeline.now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def clone(value: Any) -> Any:
    """Copies what JSON can say; ``copy.deepcopy`` would take most of the time of a run."""
    return marshal.loads(marshal.dumps(value))


def _key(document: Mapping[str, Any]) -> ObjectKey:
    metadata = document["metadata"]
    return ObjectKey(document["kind"], metadata["namespace"], metadata["name"])


def _labelled(document: Document, labels: Mapping[str, str]) -> bool:
    return labels.items() <= document["metadata"].get("labels", {}).items()


def _merge(target: Document, source: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """``before`` is what the same manager applied last, and no other has."""
    for name, value in source.items():
        if name == "ports" and isinstance(target.get(name), list):
            target[name] = _merge_ports(target[name], value, before.get(name) or [])
        elif isinstance(value, Mapping) and isinstance(target.get(name), dict) and name not in _ATOMIC:
            _merge(target[name], value, before.get(name) or {})
        else:
            target[name] = clone(value)


def _without(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Document:
    """Returns what of an applied object no other manager has as well."""
    alone: Document = {}
    for name, value in ours.items():
        if isinstance(value, Mapping) and isinstance(theirs.get(name), Mapping):
            alone[name] = _without(value, theirs[name])
        elif name == "ports" and isinstance(theirs.get(name), list):
            known = {port["port"] for port in theirs[name] if isinstance(port, Mapping)}
            alone[name] = [port for port in value if port["port"] not in known]
        elif name not in theirs:
            alone[name] = value
    return alone


def _merge_ports(found: list[Document], wanted: list[Document], before: list[Document]) -> list[Document]:
    """A Service's ports are a map by port: one that somebody else added stays."""
    ours = {port["port"] for port in [*wanted, *before]}
    theirs = [port for port in found if port["port"] not in ours]
    known = {port["port"]: port for port in found}
    return [*({**known.get(port["port"], {}), **clone(port)} for port in wanted), *theirs]


def _patch_one(document: Document, operation: Mapping[str, Any]) -> None:
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    target: Any = document
    try:
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target[part]
        at: Any = last if isinstance(target, dict) else len(target) if last == "-" else int(last)
        match operation["op"]:
            case "test" if target[at] != operation["value"]:
                raise ApiError(
                    422, f"the server rejected our request: test of {operation['path']} failed", "PatchFailed"
                )
            case "test":
                return
            case "remove":
                del target[at]
            case "replace":
                target[at]  # it must be there
                target[at] = clone(operation["value"])
            case "add" if isinstance(target, list):
                target.insert(at, clone(operation["value"]))
            case "add":
                target[at] = clone(operation["value"])
    except (KeyError, IndexError):
        raise ApiError(422, f"the server rejected our request: no {operation['path']}", "PatchFailed") from None


def _merge_patch(target: Document, patch: Mapping[str, Any]) -> None:
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, Mapping):
            if not isinstance(target.get(name), dict):
                target[name] = {}
            _merge_patch(target[name], value)
        else:
            target[name] = clone(value)


def _prune(target: Document, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    for name, value in before.items():
        if name not in target:
            continue
        if isinstance(value, Mapping) and isinstance(target[name], dict):
            _prune(target[name], value, after.get(name) or {})
            if name not in after and not target[name]:
                del target[name]
        elif name not in after:
            del target[name]


def _validate(document: Document) -> None:
    if document["kind"] == "Service":
        ports = [port["name"] for port in document["spec"]["ports"]]
        if len(set(ports)) != len(ports):
            raise ApiError(422, f"spec.ports: Duplicate value: {ports}", "Invalid")


def _fill(schema: Mapping[str, Any], value: Document) -> None:
    """Sets the defaults of a CRD's schema."""
    for name, property in schema.get("properties", {}).items():
        if "default" in property:
            value.setdefault(name, clone(property["default"]))
        if isinstance(value.get(name), dict):
            _fill(property, value[name])


def _default(document: Document) -> None:
    """What the API server, or a CRD's schema, fills in."""
    spec = document.get("spec", {})
    match document["kind"]:
        case "ServingDeployment":
            _fill(_SCHEMA, document)
        case "Service":
            defaults = {"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "sessionAffinity": "None"}
            defaults |= {"type": "ClusterIP", "internalTrafficPolicy": "Cluster", "ipFamilyPolicy": "SingleStack"}
            for name, value in defaults.items():
                spec.setdefault(name, value)
            for port in spec.get("ports", ()):
                port.setdefault("protocol", "TCP")
                port.setdefault("targetPort", port["port"])
        case "RayCluster":
            for group in spec.get("workerGroupSpecs", ()):
                for name, value in {"replicas": 0, "minReplicas": 0, "maxReplicas": 2**31 - 1, "numOfHosts": 1}.items():
                    group.setdefault(name, value)
            if "gcsFaultToleranceOptions" in spec and "deletionTimestamp" not in document["metadata"]:
                document["metadata"].setdefault("finalizers", [_REDIS_FINALIZER])
        case "Secret":
            document.setdefault("type", "Opaque")
            for name, value in document.pop("stringData", {}).items():
                document.setdefault("data", {})[name] = base64.b64encode(value.encode()).decode()
