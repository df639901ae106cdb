"""World for tests of plans: it does at once what a plan asks, and everything else only when a test calls for it.

Kubernetes is the model of the sweep, with KubeRay's part set by hand. Ray Serve is a report that a test writes.
The sweep has the other world, in which Kubernetes, KubeRay and Ray act on their own over time.
"""

import copy
import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo_api.resource.deployment import API_VERSION, FINALIZER, KIND
from octavo_api.resource.status import Status
from octavo_operator.model import actions as act
from octavo_operator.model.defaults import Defaults
from octavo_operator.model.observed import (
    Application,
    Deployment,
    Key,
    Observed,
    Reach,
    Replica,
    Resource,
    ServeState,
)
from octavo_operator.observe import cluster_of
from octavo_operator.plan import plan
from octavo_testing.operator.sweep.apiserver import ApiServer, Document, ObjectKey, clone

KEY = Key("shop", "qwen")
EXTERNAL = "http://ray.example:8265"
START = 1_800_000_000.0
DEFAULTS = Defaults(image="octavo:1", ray_version="2.60.0", operator_namespace="octavo", operator_labels={"app": "op"})
CHILDREN = ("Service", "PodDisruptionBudget", "NetworkPolicy", "Secret")
_READABLE = (Reach.OK, Reach.INCOMPATIBLE)
_HELD = "example.com/held"
"""Finalizer of every RayCluster. A test ends the deletion with ``finish_deletions``."""


@dataclass
class App:
    """Serve's report about one application."""

    config: dict[str, Any]
    status: str = "DEPLOYING"
    message: str = ""
    missing_package: str = ""
    replicas: dict[str, list[str]] = field(default_factory=lambda: {"Engine": [], "Gateway": []})
    statuses: dict[str, str] = field(default_factory=lambda: {"Engine": "UPDATING", "Gateway": "UPDATING"})
    messages: dict[str, str] = field(default_factory=dict)
    targets: dict[str, int] = field(default_factory=dict)
    """Targets of Serve that differ from the present counts."""

    def minimum(self, deployment: str) -> int:
        (options,) = (item for item in self.config["deployments"] if item["name"] == deployment)
        return int(options["autoscaling_config"]["min_replicas"])

    def run(self, engines: int | None = None) -> None:
        self.status = "RUNNING"
        self.statuses = {"Engine": "HEALTHY", "Gateway": "HEALTHY"}
        counts = {"Engine": self.minimum("Engine") if engines is None else engines, "Gateway": self.minimum("Gateway")}
        self.replicas = {name: ["RUNNING"] * count for name, count in counts.items()}

    def observed(self, name: str) -> Application:
        deployments = {
            deployment: Deployment(
                deployment,
                self.statuses[deployment],
                target=self._target(deployment, states),
                replicas=tuple(Replica(f"{deployment}#{n}", state) for n, state in enumerate(states)),
                message=self.messages.get(deployment, ""),
            )
            for deployment, states in self.replicas.items()
        }
        config = copy.deepcopy(self.config)
        return Application(name, self.status, self.message, config, deployments, self.missing_package)

    def _target(self, deployment: str, states: list[str]) -> int:
        present = len(states) - states.count("STOPPING")
        return self.targets.get(deployment, present if states else self.minimum(deployment))


@dataclass
class Ray:
    reach: Reach = Reach.OK
    message: str = ""
    apps: dict[str, App] = field(default_factory=dict)


class Clock:
    """Time of the model. Nothing happens later by itself, so timers are dropped."""

    now = START

    def after(self, delay: float, action: Any, *arguments: Any) -> None:
        return


class PlanWorld:
    """One deployment, its objects, and its Rays by the address of the dashboard."""

    def __init__(self, spec: Mapping[str, Any] | None = None, *, external: bool = False) -> None:
        self.clock = Clock()
        self.api = ApiServer(self.clock, random.Random(0))
        self.api.namespaces[KEY.namespace] = False
        self.spec: dict[str, Any] = {"model": {"uri": "embedded://smollm2"}, **copy.deepcopy(dict(spec or {}))}
        self.external = external
        if external:
            self.spec["rayCluster"] = {"external": {"dashboardURL": f"{EXTERNAL}/"}}
        self.generation = 1
        self.status: dict[str, Any] = {}
        self.deleted_at: float | None = None
        self.finalizers: list[str] = []
        self.annotations: dict[str, str] = {}
        self.terminating = False
        self.missing_secrets: tuple[str, ...] = ()
        self.missing_claims: tuple[str, ...] = ()
        self.foreign: tuple[tuple[str, str], ...] = ()
        self.rays: dict[str, Ray] = {EXTERNAL: Ray()} if external else {}
        self.defaults = DEFAULTS
        self.events: list[act.Event] = []
        self.actions: list[act.Action] = []

    # The user

    def edit(self, **changes: Any) -> None:
        """Edit the spec: ``a__b=1`` sets ``spec.a.b``, None removes it."""
        for path, value in changes.items():
            *sections, name = path.split("__")
            section = self.spec
            for part in sections:
                section = section.setdefault(part, {})
            section[name] = value
            if value is None:
                del section[name]
        self.generation += 1

    def delete(self) -> None:
        self.deleted_at = self.now

    # Kubernetes and KubeRay

    @property
    def now(self) -> float:
        return self.clock.now

    def tick(self, seconds: float = 2.0) -> None:
        self.clock.now += seconds

    def install_kuberay(self, *, installed: bool) -> None:
        (self.api.kinds_missing.discard if installed else self.api.kinds_missing.add)("RayCluster")

    @property
    def clusters(self) -> dict[str, Document]:
        """The RayClusters themselves, by name."""
        return {key.name: found for key, found in self.api.objects.items() if key.kind == "RayCluster"}

    @property
    def cluster(self) -> Document:
        (cluster,) = self.clusters.values()
        return cluster

    @property
    def children(self) -> dict[tuple[str, str], Document]:
        """The other objects themselves, by kind and name. To delete one, call ``remove``."""
        return {(key.kind, key.name): found for key, found in self.api.objects.items() if key.kind in CHILDREN}

    def remove(self, kind: str, name: str) -> Document:
        found = self.children[kind, name]
        self.api.delete(kind, KEY.namespace, name)
        return found

    def remove_children(self) -> None:
        for kind, name in self.children:
            self.remove(kind, name)

    def head_up(self, name: str | None = None) -> None:
        for cluster in self.clusters:
            if name in (None, cluster):
                self.report(cluster, conditions=[{"type": "HeadPodReady", "status": "True"}])
                self.rays.setdefault(self.address(cluster), Ray())

    def report(self, cluster: str, **status: Any) -> None:
        """Write fields of the status that KubeRay reports."""
        self.clusters[cluster].setdefault("status", {}).update(status)

    def head_is_up(self, cluster: str) -> bool:
        return "conditions" in self.clusters[cluster].get("status", {}) and not self.is_deleting(cluster)

    def is_deleting(self, cluster: str) -> bool:
        return "deletionTimestamp" in self.clusters[cluster]["metadata"]

    def delete_cluster(self, cluster: str) -> None:
        self.api.delete("RayCluster", KEY.namespace, cluster)

    def finish_deletions(self) -> None:
        for name in [name for name in self.clusters if self.is_deleting(name)]:
            self.api.set_finalizers(ObjectKey("RayCluster", KEY.namespace, name), [])
            self.rays.pop(self.address(name), None)

    def group(self, name: str) -> Document:
        (found,) = (group for group in self.cluster["spec"]["workerGroupSpecs"] if group["groupName"] == name)
        return found

    def pods_follow(self) -> None:
        """Run as many pods as Serve has replicas, within the bounds, as Ray's autoscaler does."""
        for name, cluster in self.clusters.items():
            app = self.rays.get(self.address(name), Ray()).apps.get(KEY.name)
            for group in cluster["spec"]["workerGroupSpecs"]:
                deployment = "Engine" if group["groupName"] == "engine" else "Gateway"
                needed = len(app.replicas[deployment]) if app else 0
                group["replicas"] = min(max(needed, group["minReplicas"]), group["maxReplicas"])
            self.report(
                name, readyWorkerReplicas=sum(group["replicas"] for group in cluster["spec"]["workerGroupSpecs"])
            )

    def ready_gateways(self) -> int:
        service = self.children.get(("Service", KEY.name))
        if service is None:
            return 0
        ray = self.rays.get(self.address(service["spec"]["selector"].get("ray.io/cluster", "")))
        app = ray.apps.get(KEY.name) if ray else None
        return app.replicas["Gateway"].count("RUNNING") if app and app.status != "DELETING" else 0

    # Ray

    def address(self, cluster: str) -> str:
        return f"http://{cluster}-head-svc.{KEY.namespace}.svc:8265"

    @property
    def ray(self) -> Ray:
        return self.rays[EXTERNAL if self.external else self.address(self.cluster["metadata"]["name"])]

    @property
    def app(self) -> App:
        return self.ray.apps["shop.qwen" if self.external else KEY.name]

    def run_apps(self, engines: int | None = None) -> None:
        for ray in self.rays.values():
            for name, app in list(ray.apps.items()):
                if app.status == "DELETING":
                    del ray.apps[name]
                elif app.status in ("DEPLOYING", "RUNNING"):
                    app.run(engines)
        self.pods_follow()

    # The operator

    def resource(self) -> Resource:
        metadata = {"name": KEY.name, "namespace": KEY.namespace, "uid": "u0", "generation": self.generation}
        document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}
        return Resource(
            key=KEY,
            uid="u0",
            generation=self.generation,
            resource_version="1",
            created_at=START,
            deleted_at=self.deleted_at,
            finalizers=tuple(self.finalizers),
            annotations=self.annotations,
            document={**document, "spec": copy.deepcopy(self.spec), "status": self.status},
            status=copy.deepcopy(self.status),
        )

    def observed(self) -> Observed:
        up = {EXTERNAL} if self.external else {self.address(name) for name in self.clusters if self.head_is_up(name)}
        return Observed(
            namespace_terminating=self.terminating,
            kuberay_installed="RayCluster" not in self.api.kinds_missing,
            clusters=tuple(cluster_of(clone(found)) for found in self.clusters.values()),
            serve={address: self._serve(address, ray) for address, ray in self.rays.items() if address in up},
            children={child: _without_values(found) for child, found in self.children.items()},
            missing_secrets=self.missing_secrets,
            missing_claims=self.missing_claims,
            foreign=self.foreign,
            ready_gateways=self.ready_gateways(),
        )

    def _serve(self, address: str, ray: Ray) -> ServeState:
        apps = {name: app.observed(name) for name, app in ray.apps.items()} if ray.reach in _READABLE else {}
        return ServeState(address, ray.reach, ray.message, "2.60.0", apps, "http://ray.example:8000")

    def plan(self) -> act.Plan:
        planned = plan(self.resource(), self.observed(), self.now, self.defaults)
        Status.model_validate(planned.status)
        json.dumps(planned.status)
        return planned

    def step(self) -> act.Plan:
        """Run one reconcile. Two seconds pass."""
        planned = self.plan()
        for action in planned.actions:
            self.execute(action)
        self.actions += planned.actions
        self.events += planned.events
        self.status = copy.deepcopy(dict(planned.status))
        self.tick()
        return planned

    def execute(self, action: act.Action) -> None:
        match action:
            case act.Apply(document) if document["kind"] == "RayCluster":
                assert document["metadata"]["name"] not in self.clusters, "an apply would replace the atomic list"
                assert all("replicas" not in group for group in document["spec"]["workerGroupSpecs"])
                self.api.create("octavo-operator", document)
                self.api.set_finalizers(ObjectKey("RayCluster", KEY.namespace, document["metadata"]["name"]), [_HELD])
            case act.Apply(document, uid):
                live = self.children.get((document["kind"], document["metadata"]["name"]))
                assert (live["metadata"]["uid"] if live else "") == uid
                self.api.apply("octavo-operator", document)
            case act.CreateSecret(document, keys):
                self.api.create("octavo-operator", {**document, "stringData": dict.fromkeys(keys, "random")})
            case act.Delete(kind=kind, name=name, uid=uid):
                self.api.delete(kind, KEY.namespace, name, uid)
            case act.PatchCluster(name, operations):
                self.api.json_patch(ObjectKey("RayCluster", KEY.namespace, name), operations)
            case act.PatchService(name, operations):
                self.api.json_patch(ObjectKey("Service", KEY.namespace, name), operations)
            case act.DeployApplication(address, application):
                self._deploy(self.rays[address], json.loads(json.dumps(application)))
            case act.RemoveApplication(address, name):
                self.rays[address].apps[name].status = "DELETING"
            case act.SetFinalizer(present):
                self.finalizers = [FINALIZER] if present else []

    def _deploy(self, ray: Ray, config: dict[str, Any]) -> None:
        assert ray.reach is Reach.OK
        app = ray.apps.setdefault(config["name"], App(config))
        assert app.config["args"].get("owner") == str(KEY), "the operator changes its own application only"
        app.config, app.status = config, "DEPLOYING"

    def settle(self, rounds: int = 40) -> act.Plan:
        """Let everything finish, until three plans in a row have no action, no event and the same status."""
        quiet = 0
        for _ in range(rounds):
            before = copy.deepcopy(self.status)
            planned = self.step()
            self.head_up()
            self.run_apps()
            self.finish_deletions()
            quiet = quiet + 1 if not planned.actions and not planned.events and planned.status == before else 0
            if quiet == 3:
                return planned
            self.tick(8)
        raise AssertionError(f"never at rest: {planned.actions} {planned.events}")

    # Questions

    def condition(self, kind: str) -> tuple[str, str]:
        (found,) = (item for item in self.status["conditions"] if item["type"] == kind)
        return found["status"], found["reason"]

    def message(self, kind: str) -> str:
        (found,) = (item for item in self.status["conditions"] if item["type"] == kind)
        return str(found["message"])

    def has(self, kind: str) -> bool:
        return any(item["type"] == kind for item in self.status["conditions"])

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.events]

    def forget(self) -> None:
        self.events.clear()
        self.actions.clear()

    def of(self, kind: type) -> list[Any]:
        return [action for action in self.actions if isinstance(action, kind)]


def serving_world(spec: Mapping[str, Any] | None = None, *, external: bool = False) -> PlanWorld:
    """Return the world of a deployment that serves and is at rest."""
    created = PlanWorld(spec, external=external)
    created.settle()
    assert created.condition("Ready")[0] == "True", created.status
    created.forget()
    return created


def kinds(actions: Iterable[act.Action]) -> list[str]:
    """Return the kind of each applied object and the type of each other action."""
    return [action.document["kind"] if isinstance(action, act.Apply) else type(action).__name__ for action in actions]


def _without_values(child: Document) -> Document:
    """Return a child as the operator observes it: a Secret with its keys and without values."""
    shown = clone(child)
    if child["kind"] == "Secret":
        shown["keys"] = sorted(shown.pop("data", {}))
    return shown
