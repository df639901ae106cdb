"""A world that does at once what a plan asks for, and everything else only when it is told to."""

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from octavo_api.status import Status
from octavo_operator.model import names
from octavo_operator.model.actions import (
    Action,
    Apply,
    CreateSecret,
    Delete,
    DeployApplication,
    PatchCluster,
    PatchService,
    Plan,
    RemoveApplication,
    SetFinalizer,
)
from octavo_operator.model.defaults import Defaults
from octavo_operator.model.observed import (
    Application,
    Cluster,
    Deployment,
    Key,
    Observed,
    Reach,
    Replica,
    Resource,
    ServeState,
)
from octavo_operator.plan import plan

KEY = Key("shop", "qwen")
EXTERNAL = "http://ray.example:8265"
START = 1_800_000_000.0
FINALIZER = "serving.octavo.dev/operator"
DEFAULTS = Defaults(image="octavo:1", ray_version="2.60.0", operator_namespace="octavo", operator_labels={"app": "op"})
_READ = (Reach.OK, Reach.INCOMPATIBLE)
"""What a Ray of another version runs is seen as well."""


@dataclass
class App:
    config: dict[str, Any]
    status: str = "DEPLOYING"
    message: str = ""
    missing_package: str = ""
    replicas: dict[str, list[str]] = field(default_factory=lambda: {"Engine": [], "Gateway": []})
    statuses: dict[str, str] = field(default_factory=lambda: {"Engine": "UPDATING", "Gateway": "UPDATING"})
    messages: dict[str, str] = field(default_factory=dict)
    targets: dict[str, int] = field(default_factory=dict)
    """Where Serve wants other numbers than there are."""

    def least(self, deployment: str) -> int:
        (options,) = (item for item in self.config["deployments"] if item["name"] == deployment)
        return int(options["autoscaling_config"]["min_replicas"])

    def run(self, engines: int | None = None) -> None:
        self.status = "RUNNING"
        self.statuses = {"Engine": "HEALTHY", "Gateway": "HEALTHY"}
        counts = {"Engine": self.least("Engine") if engines is None else engines, "Gateway": self.least("Gateway")}
        self.replicas = {name: ["RUNNING"] * count for name, count in counts.items()}

    def seen(self, name: str) -> Application:
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
        there = len([state for state in states if state != "STOPPING"])
        return self.targets.get(deployment, there if states else self.least(deployment))


@dataclass
class Ray:
    reach: Reach = Reach.OK
    message: str = ""
    apps: dict[str, App] = field(default_factory=dict)


class World:
    def __init__(self, spec: Mapping[str, Any] | None = None, *, external: bool = False) -> None:
        self.now = START
        self.spec: dict[str, Any] = {"model": {"uri": "embedded://smollm2"}, **copy.deepcopy(dict(spec or {}))}
        self.external = external
        if external:
            self.spec["rayCluster"] = {"external": {"dashboardURL": f"{EXTERNAL}/"}}
        self.generation = 1
        self.status: dict[str, Any] = {}
        self.deleted_at: float | None = None
        self.finalizers: list[str] = []
        self.annotations: dict[str, str] = {}
        self.kuberay = True
        self.terminating = False
        self.missing_secrets: tuple[str, ...] = ()
        self.missing_claims: tuple[str, ...] = ()
        self.foreign: tuple[tuple[str, str], ...] = ()
        self.clusters: dict[str, dict[str, Any]] = {}
        self.rays: dict[str, Ray] = {EXTERNAL: Ray()} if external else {}
        self.children: dict[tuple[str, str], dict[str, Any]] = {}
        self.defaults = DEFAULTS
        self.events: list[Any] = []
        self.actions: list[Action] = []
        self._uid = 0

    # What a user does

    def edit(self, **changes: Any) -> None:
        """``a__b=1`` sets ``spec.a.b``; None takes it away."""
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

    # What the world does

    def tick(self, seconds: float = 2.0) -> None:
        self.now += seconds

    def head_up(self, name: str | None = None) -> None:
        for cluster in self._named(name):
            cluster["_ready"] = True
            self.rays.setdefault(self.address(cluster["metadata"]["name"]), Ray())

    def run_apps(self, engines: int | None = None) -> None:
        for ray in self.rays.values():
            for name, app in list(ray.apps.items()):
                if app.status == "DELETING":
                    del ray.apps[name]
                elif app.status in ("DEPLOYING", "RUNNING"):
                    app.run(engines)
        self.pods_follow()

    def pods_follow(self) -> None:
        """Ray's autoscaler: as many pods as Serve has replicas, at least the minimum."""
        for cluster in self.clusters.values():
            ray = self.rays.get(self.address(cluster["metadata"]["name"]), Ray())
            app = ray.apps.get(KEY.name)
            total = 0
            for group in cluster["spec"]["workerGroupSpecs"]:
                deployment = "Engine" if group["groupName"] == "engine" else "Gateway"
                wanted = len(app.replicas[deployment]) if app else 0
                group["replicas"] = min(max(wanted, group["minReplicas"]), group["maxReplicas"])
                total += group["replicas"]
            cluster["status"] = {"readyWorkerReplicas": total}

    def finish_deletions(self) -> None:
        for name in [name for name, cluster in self.clusters.items() if cluster["_deleting"]]:
            del self.clusters[name]
            self.rays.pop(self.address(name), None)

    def address(self, cluster: str) -> str:
        return f"http://{cluster}-head-svc.shop.svc:8265"

    @property
    def cluster(self) -> dict[str, Any]:
        (cluster,) = self.clusters.values()
        return cluster

    @property
    def ray(self) -> Ray:
        if self.external:
            return self.rays[EXTERNAL]
        return self.rays[self.address(self.cluster["metadata"]["name"])]

    @property
    def app(self) -> App:
        return self.ray.apps["shop.qwen" if self.external else "qwen"]

    def group(self, name: str) -> dict[str, Any]:
        (found,) = (group for group in self.cluster["spec"]["workerGroupSpecs"] if group["groupName"] == name)
        return found

    def _named(self, name: str | None) -> list[dict[str, Any]]:
        return [cluster for key, cluster in self.clusters.items() if name in (None, key)]

    # What the operator sees and does

    def resource(self) -> Resource:
        document = {
            "apiVersion": "serving.octavo.dev/v1alpha1",
            "kind": "ServingDeployment",
            "metadata": {"name": KEY.name, "namespace": KEY.namespace, "uid": "u0", "generation": self.generation},
            "spec": copy.deepcopy(self.spec),
            "status": self.status,
        }
        return Resource(
            key=KEY,
            uid="u0",
            generation=self.generation,
            resource_version="1",
            created_at=START,
            deleted_at=self.deleted_at,
            finalizers=tuple(self.finalizers),
            annotations=self.annotations,
            document=document,
            status=copy.deepcopy(self.status),
        )

    def observed(self) -> Observed:
        clusters = tuple(self._cluster(document) for document in self.clusters.values())
        serve = {}
        for address, ray in self.rays.items():
            up = self.external or any(self.address(c.name) == address and c.head_ready for c in clusters)
            if up:
                apps = {name: app.seen(name) for name, app in ray.apps.items()} if ray.reach in _READ else {}
                serve[address] = ServeState(address, ray.reach, ray.message, "2.60.0", apps, "http://ray.example:8000")
        return Observed(
            namespace_terminating=self.terminating,
            kuberay_installed=self.kuberay,
            clusters=clusters,
            serve=serve,
            children=copy.deepcopy(self.children),
            missing_secrets=self.missing_secrets,
            missing_claims=self.missing_claims,
            foreign=self.foreign,
            ready_gateways=self.ready_gateways(),
        )

    def ready_gateways(self) -> int:
        service = self.children.get(("Service", "qwen"))
        if service is None:
            return 0
        ray = self.rays.get(self.address(service["spec"]["selector"].get("ray.io/cluster", "")))
        app = ray.apps.get("qwen") if ray else None
        return app.replicas["Gateway"].count("RUNNING") if app and app.status != "DELETING" else 0

    def _cluster(self, document: Mapping[str, Any]) -> Cluster:
        metadata = document["metadata"]
        return Cluster(
            name=metadata["name"],
            uid=metadata["uid"],
            spec_hash=metadata["labels"][names.HASH_LABEL],
            created_at=document["_at"],
            deleting=document["_deleting"],
            head_ready=document["_ready"] and not document["_deleting"],
            message=document.get("_message", ""),
            image=document["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["image"],
            document=copy.deepcopy({k: v for k, v in document.items() if not k.startswith("_")}),
        )

    def plan(self) -> Plan:
        made = plan(self.resource(), self.observed(), self.now, self.defaults)
        Status.model_validate(made.status)
        json.dumps(made.status)
        return made

    def step(self) -> Plan:
        """One round of the operator; two seconds pass."""
        made = self.plan()
        self.act(made)
        self.tick()
        return made

    def act(self, made: Plan) -> None:
        for action in made.actions:
            self._act(copy.deepcopy(action))
        self.actions += made.actions
        self.events += made.events
        self.status = copy.deepcopy(dict(made.status))

    def _act(self, action: Action) -> None:
        match action:
            case Apply(document) if document["kind"] == "RayCluster":
                name = document["metadata"]["name"]
                assert self.kuberay
                assert name not in self.clusters, "never applied to one that exists: the atomic list would be replaced"
                made = copy.deepcopy(dict(document))
                for group in made["spec"]["workerGroupSpecs"]:
                    assert "replicas" not in group
                    group["replicas"] = 0
                made["metadata"]["uid"] = self._new_uid()
                self.clusters[name] = {**made, "_at": self.now, "_deleting": False, "_ready": False}
            case Apply(document, seen):
                child = document["kind"], document["metadata"]["name"]
                assert self.children.get(child, {}).get("metadata", {}).get("uid", "") == seen
                uid = seen or self._new_uid()
                made = copy.deepcopy(dict(document))
                made["metadata"]["uid"] = uid
                self.children[child] = made
            case CreateSecret(document, keys):
                name = document["metadata"]["name"]
                self.children.setdefault(("Secret", name), {**document, "keys": sorted(keys)})
            case Delete(kind="RayCluster", name=name, uid=uid):
                assert self.clusters[name]["metadata"]["uid"] == uid
                self.clusters[name]["_deleting"] = True
            case Delete(kind=kind, name=name):
                del self.children[kind, name]
            case PatchCluster(name, operations):
                json_patch(self.clusters[name], operations)
            case PatchService(name, operations):
                json_patch(self.children["Service", name], operations)
            case DeployApplication(address, application):
                self._put(self.rays[address], json.loads(json.dumps(application)))
            case RemoveApplication(address, name):
                self.rays[address].apps[name].status = "DELETING"
            case SetFinalizer(present):
                self.finalizers = [FINALIZER] if present else []

    def _put(self, ray: Ray, config: dict[str, Any]) -> None:
        assert ray.reach is Reach.OK
        found = ray.apps.get(config["name"])
        assert found is None or found.config["args"].get("owner") == str(KEY), "not ours"
        if found is None:
            ray.apps[config["name"]] = App(config)
        else:
            found.config, found.status = config, "DEPLOYING"

    def _new_uid(self) -> str:
        self._uid += 1
        return f"u{self._uid}"

    # Runs

    def settle(self, rounds: int = 40) -> Plan:
        """Lets everything come about, until a plan asks for nothing and says nothing new."""
        quiet = 0
        for _ in range(rounds):
            before = copy.deepcopy(self.status)
            made = self.step()
            self.head_up()
            self.run_apps()
            self.finish_deletions()
            quiet = quiet + 1 if not made.actions and not made.events and made.status == before else 0
            if quiet == 3:
                return made
            self.tick(8)
        raise AssertionError(f"never at rest: {made.actions} {made.events}")

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


def json_patch(
    document: dict[str, Any], operations: Iterator[Mapping[str, Any]] | tuple[Mapping[str, Any], ...]
) -> None:
    for operation in operations:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        at: Any = document
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        key: Any = last if isinstance(at, dict) or last == "-" else int(last)
        if operation["op"] == "test":
            assert at[key] == operation["value"], f"test failed: {operation}"
        elif key == "-":
            at.append(operation["value"])
        else:
            at[key] = operation["value"]


@pytest.fixture(scope="session")
def world() -> Callable[..., World]:
    return World


@pytest.fixture
def serving() -> Callable[..., World]:
    """A deployment that serves and is at rest."""

    def make(spec: Mapping[str, Any] | None = None, *, external: bool = False) -> World:
        made = World(spec, external=external)
        made.settle()
        assert made.condition("Ready")[0] == "True", made.status
        made.forget()
        return made

    return make
