"""What each verb of a script does to the world."""

import random
from collections.abc import Callable
from typing import Any

from octavo_operator.model.names import DEPLOYMENT_LABEL, HASH_LABEL
from octavo_testing.operator.sweep.apiserver import Document, ObjectKey
from octavo_testing.operator.sweep.faults import Fault, Faults
from octavo_testing.operator.sweep.script import Step, Verb
from octavo_testing.operator.sweep.world import BROKEN, EXTERNAL, FOREIGN_IMPORT, World, foreign_application, set_path

NAMES = (("shop", "books"), ("shop", "songs"), ("lab", "books"))
SECRET, TOKEN_SECRET = "keys", "ray-token"

LIVE: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("engine.maxNumQueuedReqs", (100, 200, None)),
    ("engine.longPrefillTokenThreshold", (64, 128, None)),
    ("router.policy", ("least_load", "round_robin", None)),
    ("router.maxInflightRequests", (64, 65)),
    ("model.servedName", ("prose", "verse", None)),
    ("rollout.drainSeconds", (30, 60, None)),
    ("rollout.progressDeadlineSeconds", (300, 600, None)),
)
ROLLING = (
    ("engine.blockSize", (64, 32, None)),
    ("engine.maxNumSeqs", (16, 32, None)),
    ("model.uri", ("hf://octavo/a", "hf://octavo/b", "embedded://smollm2")),
)
CLUSTER = (
    ("rayCluster.managed.priorityClassName", ("high", "low", None)),
    ("rayCluster.managed.image", ("octavo:test-a", "octavo:test-b", None)),
    ("resources.limits.cpu", ("3", "4", None)),
    ("endpoint.http.port", (8001, 8002, 8000)),
    ("router.resources.limits.memory", ("2Gi", "3Gi", None)),
)


def first_spec(external: bool, choice: int) -> Document:
    rng = random.Random(choice)
    spec: Document = {"model": {"uri": "embedded://smollm2"}}
    if external:
        spec["rayCluster"] = {"external": {"dashboardURL": EXTERNAL}}
    else:
        spec["rayCluster"] = {"managed": {}}
        set_path(spec, "rollout.strategy", rng.choice(("InPlace", "NewCluster")))
        if rng.random() < 0.2:
            set_path(spec, "rayCluster.managed.gcsFaultTolerance", {"redisAddress": "redis:6379"})
        if rng.random() < 0.2:
            set_path(spec, "rayCluster.managed.networkPolicy", True)
    if rng.random() < 0.5:
        spec["replicas"] = rng.choice((1, 2, 3))
    return spec


class Actor:
    """Does steps. ``kill`` and ``upgrade`` are the operator's side."""

    def __init__(
        self,
        world: World,
        faults: Faults,
        serve_faults: Faults,
        external: tuple[bool, ...],
        kill: Callable[[int], None],
        upgrade: Callable[[int], None],
    ) -> None:
        self._world, self._external = world, external
        self._faults, self._serve_faults = faults, serve_faults
        self._kill, self._upgrade = kill, upgrade
        self.always: Document = {}
        """In every spec that is created."""
        self._first: dict[tuple[str, str], int] = {}

    def do(self, step: Step) -> None:
        self._world.say(str(step))
        namespace, name = NAMES[step.target]
        rng = random.Random(step.choice)
        world, external = self._world, self._external[step.target]

        def edit(path: str, value: Any) -> None:
            world.edit(namespace, name, lambda spec: set_path(spec, path, value))

        match step.verb:
            case Verb.CREATE:
                self._first.setdefault((namespace, name), step.choice)
                world.create(namespace, name, {**first_spec(external, step.choice), **self.always})
            case Verb.EDIT_LIVE:
                path, values = rng.choice(LIVE)
                edit(path, rng.choice(values))
            case Verb.EDIT_ROLLING:
                path, values = rng.choice(ROLLING)
                edit(path, rng.choice(values))
            case Verb.EDIT_CLUSTER:
                path, values = rng.choice(CLUSTER[2:3] if external else CLUSTER)
                edit(path, rng.choice(values))
            case Verb.EDIT_BACK:
                spec = first_spec(external, self._first.get((namespace, name), 0))
                world.edit(namespace, name, lambda found: _replace(found, spec))
            case Verb.EDIT_BROKEN:
                edit("model.uri", BROKEN)
            case Verb.STRATEGY if not external:
                edit("rollout.strategy", rng.choice(("InPlace", "NewCluster")))
            case Verb.SCALE:  # refused by the API server where autoscaling decides
                count = rng.choice((0, 1, 2, 3, 5))
                world.edit(namespace, name, lambda spec: None if "autoscaling" in spec else spec.update(replicas=count))
            case Verb.AUTOSCALING_ON:
                low = rng.choice((0, 1, 2))
                edit("autoscaling", {"minReplicas": low, "maxReplicas": low + rng.choice((1, 3))})
            case Verb.AUTOSCALING_OFF:
                edit("autoscaling", None)
            case Verb.LOAD:
                for ray in world.rays(namespace, name):
                    ray.set_load(rng.choice((0, 1, 2, 4, 9)))
            case Verb.SUSPEND:
                edit("suspend", True)
            case Verb.RESUME:
                edit("suspend", False)
            case Verb.POLICY if external:
                edit("deletionPolicy", rng.choice(("Delete", "Orphan")))
            case Verb.POLICY:
                edit("rayCluster.managed.networkPolicy", rng.choice((True, False)))
            case Verb.NEED_SECRET if external:
                reference = {"name": TOKEN_SECRET}
                edit("rayCluster.external.authSecretRef", rng.choice((reference, None)))
            case Verb.NEED_SECRET:
                edit("endpoint.apiKeySecretRef", rng.choice(({"name": SECRET}, None)))
            case Verb.MAKE_SECRET:
                world.make_secret(namespace, SECRET, ("api-keys",))
                world.make_secret(namespace, TOKEN_SECRET, ("auth_token",))
            case Verb.DELETE:
                world.delete(namespace, name)
            case Verb.FORCE_DELETE:
                world.force_delete(namespace, name)
            case Verb.DELETE_NAMESPACE:
                world.api.delete_namespace(namespace)
            case Verb.KILL:
                self._kill(step.choice)
            case Verb.UPGRADE:
                self._upgrade(step.choice)
            case _:
                self._misfortune(step, namespace, name, rng)

    def _misfortune(self, step: Step, namespace: str, name: str, rng: random.Random) -> None:
        world, external = self._world, self._external[step.target]
        ours = f"{namespace}.{name}" if external else name
        match step.verb:
            case Verb.FOREIGN_PUT | Verb.FOREIGN_REMOVE:
                for ray in world.rays(namespace, name):
                    world.put_foreign(ray, lambda found: _spoil(found, ours, step))
            case Verb.FOREIGN_SET:
                theirs = rng.choice(("cart", "till"))
                world.set_foreign(theirs, foreign_application(theirs, step.choice % 3))
            case Verb.FOREIGN_GONE:
                world.set_foreign(rng.choice(("cart", "till")), None)
            case Verb.FOREIGN_SAME_NAME:
                self._take_name(namespace, name)
            case Verb.FOREIGN_OBJECT:
                kind, suffix = rng.choice(_NEEDED)
                world.take_name(ObjectKey(kind, namespace, name + suffix), replace=rng.random() < 0.5)
            case Verb.FOREIGN_OBJECT_GONE:
                world.give_names_back()
            case Verb.DELETE_CLUSTER:
                world.delete_child("RayCluster", namespace, name)
            case Verb.DELETE_CHILD:
                kind = rng.choice(("Service", "PodDisruptionBudget", "NetworkPolicy", "Secret"))
                world.delete_child(kind, namespace, name)
            case Verb.EDIT_CHILD:
                kind, change = rng.choice(_EDITS)
                world.bounds_edited |= change is _bounds
                world.edit_child(kind, namespace, name, change)
            case Verb.HEAD_RESTART:
                for cluster in world.clusters(namespace, name):
                    cluster.restart_head()
            case Verb.SERVE_DOWN:
                for ray in world.rays(namespace, name):
                    if ray.answers:
                        ray.answers = False
                        world.timeline.after(rng.choice((3, 20, 90)), setattr, ray, "answers", True)
            case Verb.SERVE_LOST:
                for ray in world.rays(namespace, name):
                    if ray.answers and not ray.dead:
                        world.foreign.clear() if ray is world.shared else None
                        ray.lose_everything()
            case Verb.SERVE_FAULTS:
                self._serve_faults.strike(rng.choice((0.2, 0.6)), rng.choice((5, 60)), list(Fault))
            case Verb.API_FAULTS:
                kinds = rng.choice(([Fault.CONFLICT], [Fault.TOO_MANY], [Fault.RESET, Fault.LOST], list(Fault)))
                self._faults.strike(rng.choice((0.1, 0.4, 0.8)), rng.choice((3, 30, 120)), kinds)
            case Verb.DEAF:
                self._faults.drop_watches = 0.7
                world.timeline.after(60, setattr, self._faults, "drop_watches", 0.0)
            case Verb.NO_ROOM:
                world.kuberay.room = False
            case Verb.ROOM:
                world.kuberay.make_room()
            case Verb.INSTALL_KUBERAY:
                world.kuberay.install()
            case Verb.RAY_DIES:
                world.shared.dead = True

    def _take_name(self, namespace: str, name: str) -> None:
        """Only where we have nothing under that name: two who fight for one are another matter."""
        application = f"{namespace}.{name}"
        if application not in self._world.shared.applications:
            self._world.set_foreign(application, foreign_application(application, 1))


def _replace(found: Document, spec: Document) -> None:
    found.clear()
    found.update(spec)


def _spoil(found: dict[str, Any], ours: str, step: Step) -> None:
    if ours not in found or found[ours].get("import_path") == FOREIGN_IMPORT:
        return
    if step.verb is Verb.FOREIGN_REMOVE:
        del found[ours]
        return
    for deployment in found[ours]["deployments"]:
        deployment["user_config"] = {**deployment.get("user_config", {}), "spoiled": step.choice}
        if step.choice % 2 and "autoscaling_config" in deployment:
            deployment["autoscaling_config"] = {
                **deployment["autoscaling_config"],
                "min_replicas": 1,
                "max_replicas": 7,
            }


def _selector(document: Document) -> None:
    document["spec"]["selector"] = {"app": "elsewhere"}


def _ports(document: Document) -> None:
    document["spec"]["ports"][0]["port"] = 81


def _labels(document: Document) -> None:
    document["metadata"]["labels"]["colour"] = "blue"


def _budget(document: Document) -> None:
    document["spec"]["minAvailable"] = 9


def _bounds(document: Document) -> None:
    for group in document["spec"]["workerGroupSpecs"]:
        group["minReplicas"], group["maxReplicas"] = 0, 1


def _hash(document: Document) -> None:
    document["metadata"]["labels"][HASH_LABEL] = "0" * 16


def _more_ports(document: Document) -> None:
    document["spec"]["ports"].append({"name": "debug", "port": 5000, "protocol": "TCP", "targetPort": 5000})


def _owner(document: Document) -> None:
    document["metadata"]["ownerReferences"] = []


def _unlabelled(document: Document) -> None:
    del document["metadata"]["labels"][DEPLOYMENT_LABEL]


_NEEDED = (("Service", ""), ("Secret", "-ray-token"), ("PodDisruptionBudget", "-engine"), ("NetworkPolicy", "-ray"))
"""Kinds, and how the names of what is needed begin with the deployment's and end."""
_EDITS: tuple[tuple[str, Callable[[Document], None]], ...] = (
    ("Service", _selector),
    ("Service", _ports),
    ("Service", _more_ports),
    ("Service", _labels),
    ("Service", _owner),
    ("Service", _unlabelled),
    ("PodDisruptionBudget", _budget),
    ("RayCluster", _bounds),
    ("RayCluster", _labels),
    ("RayCluster", _hash),
)

__all__ = ["NAMES", "Actor", "ObjectKey", "first_spec"]
