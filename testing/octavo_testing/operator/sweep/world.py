"""Everything around the operator, and what users and misfortune do to it."""

import random
from collections.abc import Callable
from typing import Any

from octavo_testing.operator.sweep.apiserver import ApiServer, Document, ObjectKey, clone
from octavo_testing.operator.sweep.clock import Timeline, VirtualLoop
from octavo_testing.operator.sweep.kuberay import KubeRay, Pod, RunningCluster
from octavo_testing.operator.sweep.ray import BAD_MODEL, Anywhere, Application, Deployment, Ray

GROUP = "serving.octavo.dev"
EXTERNAL = "http://shared:8265"
FOREIGN_IMPORT = "shop.cart:app"


class World:
    def __init__(self, loop: VirtualLoop, seed: int, kuberay: bool = True) -> None:
        self.loop = loop
        self.rng = random.Random(seed)
        self.timeline = Timeline(loop)
        self.api = ApiServer(self.timeline, self.rng)
        self.kuberay = KubeRay(self.timeline, self.rng, self.api, installed=kuberay)
        self.shared = Ray(self.timeline, self.rng, EXTERNAL, self._anywhere)
        self.foreign: dict[str, Document] = {}
        """Applications of somebody else on the shared Ray, as they must be."""
        self.theirs: dict[str, ObjectKey] = {}
        """By uid: objects of somebody else that have a name which a deployment needs."""
        self.api.watchers.append(self._check_theirs)
        self.specs: dict[tuple[str, str], Document] = {}
        """By namespace and name: the spec that the user wants, None once it was deleted."""
        self.log: list[str] = []
        self._ready: dict[str, int] = {}
        self.kuberay.on_new.append(lambda made: made.ray.on_change.append(lambda: self._tell_endpoints(made)))
        self.shared.on_change.append(self.check_foreign)
        self.violations: list[str] = []
        self.changed_at = 0.0
        """When something last changed without the operator's doing."""
        self.shared.on_change.append(self._changed)
        self.kuberay.on_new.append(lambda made: made.ray.on_change.append(self._changed))
        self.recorded: list[Document] = []
        self.api.watchers.append(lambda _, found: self.recorded.append(found) if found["kind"] == "Event" else None)
        self.bounds_edited = False
        """Whether somebody changed the bounds of worker groups by hand."""
        self.puts: list[tuple[float, str]] = []
        """Time and address of each that the operator sent."""

    @property
    def now(self) -> float:
        return self.loop.now

    def _changed(self) -> None:
        self.changed_at = self.now

    def say(self, text: str) -> None:
        self.log.append(f"{self.now - 1_800_000_000:9.2f} {text}")

    def violated(self, text: str) -> None:
        self.say(f"VIOLATION {text}")
        self.violations.append(text)

    def _anywhere(self, application: Application, deployment: Deployment) -> Anywhere:
        return Anywhere()

    def ray(self, address: str) -> Ray | None:
        """What answers at ``address``."""
        if address.rstrip("/") == EXTERNAL:
            return self.shared
        for cluster in self.kuberay.clusters.values():
            if cluster.ray.address == address.rstrip("/") and not cluster.ray.dead:
                return cluster.ray
        return None

    @property
    def events(self) -> list[Document]:
        """Kubernetes Events that the operator wrote."""
        return self.recorded

    def heal(self) -> None:
        """Gives whatever is missing: KubeRay, nodes, Secrets."""
        self.say("heal")
        self.kuberay.install()
        self.kuberay.make_room()
        self.give_names_back()
        for namespace in list(self.api.namespaces):
            self.make_secret(namespace, "keys", ("api-keys",))
            self.make_secret(namespace, "ray-token", ("auth_token",))

    # The user

    def make_namespace(self, namespace: str) -> None:
        self.api.namespaces.setdefault(namespace, False)

    def create(self, namespace: str, name: str, spec: Document) -> None:
        self.make_namespace(namespace)
        key = ObjectKey("ServingDeployment", namespace, name)
        if key in self.api.objects or self.api.namespaces[namespace]:
            return
        self.specs[namespace, name] = spec
        metadata = {"namespace": namespace, "name": name}
        document = {"apiVersion": f"{GROUP}/v1alpha1", "kind": key.kind, "metadata": metadata, "spec": spec}
        self.api.create("user", document)

    def edit(self, namespace: str, name: str, change: Callable[[Document], None]) -> None:
        """Edits the spec where the deployment is there and to stay."""
        found = self.api.objects.get(ObjectKey("ServingDeployment", namespace, name))
        if found is None or "deletionTimestamp" in found["metadata"]:
            return
        self.api.edit("ServingDeployment", namespace, name, lambda document: change(document["spec"]))

    def delete(self, namespace: str, name: str) -> None:
        if ObjectKey("ServingDeployment", namespace, name) in self.api.objects:
            self.api.delete("ServingDeployment", namespace, name)

    def force_delete(self, namespace: str, name: str) -> None:
        annotation = {f"{GROUP}/force-delete": "true"}
        self.api.edit(
            "ServingDeployment",
            namespace,
            name,
            lambda document: document["metadata"].setdefault("annotations", {}).update(annotation),
        )

    def make_secret(self, namespace: str, name: str, keys: tuple[str, ...]) -> None:
        self.make_namespace(namespace)
        if ObjectKey("Secret", namespace, name) not in self.api.objects and not self.api.namespaces[namespace]:
            metadata = {"namespace": namespace, "name": name}
            data = dict.fromkeys(keys, "c2VjcmV0")
            self.api.create("user", {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})

    # Other people

    def take_name(self, key: ObjectKey, *, replace: bool = False) -> None:
        """Somebody makes an object of their own, unless there is one; ``replace``: ours is deleted by hand first."""
        self.make_namespace(key.namespace)
        if replace and key in self.api.objects and key not in self.theirs.values():
            self.api.delete(*key)
        if key in self.api.objects or self.api.namespaces[key.namespace]:
            return
        metadata = {"namespace": key.namespace, "name": key.name, "labels": {"app": "theirs"}}
        made = self.api.create("somebody", {"kind": key.kind, "metadata": metadata, **clone(_THEIRS[key.kind])})
        self.theirs[made["metadata"]["uid"]] = key

    def give_names_back(self) -> None:
        for key in list(self.theirs.values()):
            self.theirs = {uid: other for uid, other in self.theirs.items() if other != key}
            if key in self.api.objects:
                self.api.delete(*key)

    def _check_theirs(self, change: str, document: Document) -> None:
        """What is not the operator's is never changed nor deleted, but goes with its namespace."""
        metadata = document["metadata"]
        if change == "ADDED" or metadata.get("uid") not in self.theirs or document["kind"] == "EndpointSlice":
            return
        if self.api.namespaces.get(metadata["namespace"]) is False:
            self.violated(f"{document['kind']} {metadata['name']} of somebody else was {change.lower()}")
        self.theirs.pop(metadata["uid"])

    # Misfortune

    def clusters(self, namespace: str, name: str) -> list[RunningCluster]:
        """Those of a deployment that are not being deleted, oldest first."""
        return [
            cluster
            for cluster in self.kuberay.clusters.values()
            if not cluster.deleted
            and cluster.key.namespace == namespace
            and cluster.document is not None
            and cluster.document["metadata"]["labels"].get(f"{GROUP}/deployment") == name
        ]

    def rays(self, namespace: str, name: str) -> list[Ray]:
        """Those that the deployment is, or may be, on."""
        found = self.api.objects.get(ObjectKey("ServingDeployment", namespace, name))
        if found is not None and "external" in found["spec"].get("rayCluster", {}):
            return [self.shared]
        return [cluster.ray for cluster in self.clusters(namespace, name)]

    def ready_gateways(self, namespace: str, service: str) -> int:
        """Pods behind a Service that answer: a gateway runs in them."""
        found = self.api.objects.get(ObjectKey("Service", namespace, service))
        if found is None:
            return 0
        selector = (found["spec"].get("selector") or {}).items()
        return sum(
            isinstance(replica.place, Pod) and replica.place.alive() and selector <= replica.place.labels.items()
            for cluster in self.kuberay.clusters.values()
            if cluster.key.namespace == namespace
            for application in cluster.ray.applications.values()
            for deployment in application.deployments.values()
            if deployment.name == "Gateway"
            for replica in deployment.running
        )

    def _tell_endpoints(self, cluster: RunningCluster) -> None:
        """EndpointSlices carry their Service's labels, so the operator's watches hear of them."""
        for service in self.api.every("Service", cluster.key.namespace):
            metadata = service["metadata"]
            ready = self.ready_gateways(metadata["namespace"], metadata["name"])
            if self._ready.get(metadata["uid"]) != ready:
                self._ready[metadata["uid"]] = ready
                slices = {"kind": "EndpointSlice", "metadata": {**metadata, "name": f"{metadata['name']}-1"}}
                for watcher in self.api.watchers:
                    watcher("MODIFIED", slices)

    def delete_child(self, kind: str, namespace: str, name: str) -> None:
        for child in self._children(kind, namespace, name):
            self.api.delete(kind, namespace, child["metadata"]["name"])

    def edit_child(self, kind: str, namespace: str, name: str, change: Callable[[Document], None]) -> None:
        for child in self._children(kind, namespace, name):
            self.api.edit(kind, namespace, child["metadata"]["name"], change)

    def _children(self, kind: str, namespace: str, name: str) -> list[Document]:
        if kind in self.api.kinds_missing:
            return []
        labels = {f"{GROUP}/deployment": name}
        found = self.api.listed(kind, namespace, labels)
        return [child for child in found if "deletionTimestamp" not in child["metadata"]]

    def put_foreign(self, ray: Ray, change: Callable[[dict[str, Any]], None]) -> None:
        """Somebody else's GET, merge and PUT in one moment; ``change`` gets the applications by name."""
        if ray.dead or not ray.answers:
            return
        applications = {name: clone(found.config) for name, found in ray.applications.items() if not found.deleting}
        change(applications)
        ray.put({"applications": list(applications.values())})

    def set_foreign(self, name: str, config: Document | None) -> None:
        """An application of somebody else on the shared Ray appears, changes or goes."""
        if self.shared.dead or not self.shared.answers:
            return
        if config is None:
            self.foreign.pop(name, None)
        else:
            self.foreign[name] = config
        self.put_foreign(
            self.shared,
            lambda found: found.pop(name, None) if config is None else found.update({name: clone(config)}),
        )

    def check_foreign(self) -> None:
        """Called whenever something changed on the shared Ray."""
        if self.shared.dead:
            return
        for name, config in self.foreign.items():
            found = self.shared.applications.get(name)
            if found is None or found.deleting or found.config != config:
                self.violated(f"foreign application {name} is not as it was put")
        for name, found in self.shared.applications.items():
            if found.config.get("import_path") == FOREIGN_IMPORT and name not in self.foreign and not found.deleting:
                self.violated(f"foreign application {name} came back")


_THEIRS: dict[str, Document] = {
    "Service": {"spec": {"ports": [{"name": "web", "port": 80}], "selector": {"app": "theirs"}}},
    "Secret": {"data": {"password": "c2VjcmV0"}},
    "PodDisruptionBudget": {"spec": {"minAvailable": 7, "selector": {"matchLabels": {"app": "theirs"}}}},
    "NetworkPolicy": {"spec": {"podSelector": {"matchLabels": {"app": "theirs"}}}},
}


def foreign_application(name: str, version: int) -> Document:
    return {
        "name": name,
        "route_prefix": f"/{name}",
        "import_path": FOREIGN_IMPORT,
        "args": {"version": version},
        "deployments": [{"name": "Cart", "num_replicas": 1, "user_config": {"version": version}}],
    }


def set_path(spec: Document, path: str, value: Any) -> None:
    """Sets ``a.b.c`` in nested mappings; None takes it out."""
    *sections, last = path.split(".")
    for section in sections:
        spec = spec.setdefault(section, {})
    if value is None:
        spec.pop(last, None)
    else:
        spec[last] = value


BROKEN = BAD_MODEL
