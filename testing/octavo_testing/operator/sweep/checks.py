"""What must be so: at every step, and when the world has come to rest."""

from collections.abc import Mapping
from typing import Any

from octavo_api.resource.deployment import ServingDeployment
from octavo_api.resource.status import Status
from octavo_operator.model import names
from octavo_operator.model.defaults import Defaults
from octavo_operator.model.desired import DesiredApplication, desired_application
from octavo_operator.model.observed import Key
from octavo_operator.model.spec_hash import spec_hash
from octavo_operator.objects.ownership import needed_objects
from octavo_testing.operator.sweep.apiserver import Document, ObjectKey
from octavo_testing.operator.sweep.kuberay import RunningCluster
from octavo_testing.operator.sweep.ray import Application, Ray, canonical, status_of
from octavo_testing.operator.sweep.world import EXTERNAL, FOREIGN_IMPORT, World

CHILD_KINDS = ("RayCluster", "Service", "PodDisruptionBudget", "NetworkPolicy", "Secret")
DELETION_S = 300 + 300 + 120
"""Longest time that a deletion may take: the deadline where Ray is dead, a back-off, and some."""
_FRESH_S = 90.0


class Monitor:
    """Watches the API server: what the operator writes must be true when it is written."""

    def __init__(self, world: World, defaults: Defaults) -> None:
        self._world, self._defaults = world, defaults
        self._deleting: dict[str, float] = {}
        self.gone: dict[Key, Document] = {}
        """The last state of each deployment that is gone."""
        self.ready_writes = 0
        world.api.watchers.append(self._watch)

    def _watch(self, change: str, document: Document) -> None:
        if document["kind"] != "ServingDeployment":
            return
        metadata, now = document["metadata"], self._world.now
        key, uid = Key(metadata["namespace"], metadata["name"]), metadata["uid"]
        if change == "DELETED":
            self.gone[key] = document
            began = self._deleting.pop(uid, now)
            if now - began > DELETION_S:
                self._world.violated(f"{key}: deletion took {now - began:.0f} s")
            return
        self.gone.pop(key, None)
        if "deletionTimestamp" in metadata:
            self._deleting.setdefault(uid, now)
        if document.get("status"):
            self._check_status(key, document)

    def _check_status(self, key: Key, document: Document) -> None:
        status, generation = document["status"], document["metadata"]["generation"]
        try:
            Status.model_validate(status)
        except ValueError as error:
            self._world.violated(f"{key}: status does not fit its schema: {error}")
        found = conditions(document)
        if len(found) != len(status.get("conditions", ())):
            self._world.violated(f"{key}: a condition twice")
        for name, condition in found.items():
            if condition.get("observedGeneration", 0) > generation:
                self._world.violated(f"{key}: condition {name} is about a generation that does not exist yet")
        ready = found.get("Ready", {})
        current = ready.get("observedGeneration") == generation == status.get("observedGeneration")
        if ready.get("status") == "True" and current and "deletionTimestamp" not in document["metadata"]:
            self.ready_writes += 1
            wanted = wanted_application(document, self._defaults)
            last = max((ray.served.get(canonical(wanted.config), 0) for ray in self._rays(key, wanted)), default=0)
            if self._world.now - last > _FRESH_S:
                self._world.violated(f"{key}: Ready for generation {generation}, which nothing serves")

    def _rays(self, key: Key, wanted: DesiredApplication) -> list[Ray]:
        if wanted.address:
            return [ray for ray in [self._world.shared] if wanted.address == EXTERNAL]
        return [c.ray for c in self._world.kuberay.clusters.values() if c.key.namespace == key.namespace]


class KeepsServing:
    """From the first time that a managed deployment answers on, it must never stop to."""

    def __init__(self, world: World, key: Key) -> None:
        self._world, self._key = world, key
        self.answered = False
        world.kuberay.on_new.append(lambda made: made.ray.on_change.append(self._look))
        world.api.watchers.append(lambda _, document: self._look() if document["kind"] == "Service" else None)

    def _look(self) -> None:
        answers = self._answers()
        if self.answered and not answers:
            self._world.violated(f"{self._key}: nobody answers any more")
        self.answered = answers

    def _answers(self) -> bool:
        service = self._world.api.objects.get(ObjectKey("Service", *self._key))
        if service is None or not self._world.ready_gateways(*self._key):
            return False
        cluster = self._world.kuberay.cluster(self._key.namespace, service["spec"]["selector"]["ray.io/cluster"])
        application = None if cluster is None else cluster.ray.applications.get(self._key.name)
        return application is not None and bool(application.deployments["Engine"].running)


def conditions(document: Mapping[str, Any]) -> dict[str, Document]:
    return {condition["type"]: condition for condition in document.get("status", {}).get("conditions", ())}


def parse_spec(document: Mapping[str, Any]) -> ServingDeployment:
    return ServingDeployment.read(document)


def wanted_application(document: Mapping[str, Any], defaults: Defaults) -> DesiredApplication:
    metadata = document["metadata"]
    return desired_application(Key(metadata["namespace"], metadata["name"]), parse_spec(document), defaults)


def check(world: World, monitor: Monitor, defaults: Defaults) -> None:
    """At rest: everything is as the specs say, and the statuses say so."""
    world.check_foreign()
    for document in world.api.every("ServingDeployment"):
        Resting(world, document, defaults).check()
    for key, document in monitor.gone.items():
        _check_gone(world, key, document)
    for cluster in world.kuberay.clusters.values():
        if not cluster.deleted and cluster.document is None:
            world.violated(f"pods of {cluster.key.name} live on without a RayCluster")
    owners = {(d["metadata"]["namespace"], d["metadata"]["name"]) for d in world.api.every("ServingDeployment")}
    for kind in CHILD_KINDS:
        for child in world.api.every(kind):
            name = child["metadata"].get("labels", {}).get(names.DEPLOYMENT_LABEL)
            if name is not None and (child["metadata"]["namespace"], name) not in owners:
                world.violated(f"orphan {kind} {child['metadata']['name']}")


def _check_gone(world: World, key: Key, document: Document) -> None:
    if world.shared.dead or "external" not in document["spec"].get("rayCluster", {}):
        return
    application = world.shared.applications.get(names.external_application(key))
    if application is None or _owner(application) != str(key):
        return
    forced = document["metadata"].get("annotations", {}).get(names.FORCE_DELETE_ANNOTATION) == "true"
    left_on_purpose = document["spec"].get("deletionPolicy") == "Orphan" or forced or abandoned(world, key)
    if not left_on_purpose:
        world.violated(f"{key}: orphan application {application.name}")


def abandoned(world: World, key: Key) -> bool:
    """Whether an event says that the application was left behind."""
    events = [event for event in world.events if event["involvedObject"]["name"] == key.name]
    return any(
        event["reason"] == "CleanupAbandoned" and event["involvedObject"]["namespace"] == key.namespace
        for event in events
    )


def _owner(application: Application) -> str | None:
    found = application.config.get("args", {}).get("owner")
    return None if found is None else str(found)


class Resting:
    """The checks of one deployment."""

    def __init__(self, world: World, document: Document, defaults: Defaults) -> None:
        self.world, self.document, self.defaults = world, document, defaults
        metadata = document["metadata"]
        self.key = Key(metadata["namespace"], metadata["name"])
        self.deployment = parse_spec(document)
        self.desired = wanted_application(document, defaults)
        self.conditions = conditions(document)

    def wrong(self, text: str) -> None:
        found = {name: (c["status"], c["reason"], c["message"][:80]) for name, c in self.conditions.items()}
        self.world.violated(f"{self.key}: {text}; {found}")

    def expect(self, condition: str, status: str, *reasons: str) -> None:
        found = self.conditions.get(condition, {})
        if found.get("status") != status or (reasons and found.get("reason") not in reasons):
            self.wrong(f"{condition} is not {status}{f' for {reasons}' if reasons else ''}")

    def check(self) -> None:
        metadata, status = self.document["metadata"], self.document.get("status", {})
        if "deletionTimestamp" in metadata:
            self.wrong("was deleted and is still there")
            return
        managed = self.deployment.external is None
        if managed == bool(metadata.get("finalizers")):
            self.wrong(f"finalizers {metadata.get('finalizers')}")
        if status.get("observedGeneration") != metadata["generation"]:
            self.wrong(f"status is about generation {status.get('observedGeneration')}, not {metadata['generation']}")
        for name, condition in self.conditions.items():
            if condition.get("observedGeneration") != metadata["generation"]:
                self.wrong(f"condition {name} is about another generation")
        if not status.get("selector"):
            self.wrong("no status.selector")
        if managed:
            self._check_managed()
        else:
            self._check_external()

    # External

    def _check_external(self) -> None:
        ray, spec = self.world.shared, self.deployment.spec
        if missing := self._missing_secrets():
            self.expect("SpecValid", "False", "SecretNotFound")
            self.expect("Ready", "False")
            return
        assert not missing
        if ray.dead:
            self.expect("RayClusterReady", "False")
            self._not_ready()
            return
        application = ray.applications.get(self.desired.name)
        if application is not None and application.config.get("import_path") == FOREIGN_IMPORT:
            if not spec.suspend:
                self.expect("ApplicationReady", "False", "ApplicationNameConflict")
            self.expect("Ready", "False")
        elif spec.suspend:
            if application is not None:
                self.wrong("suspended, and its application is still there")
            self.expect("Ready", "False", "Suspended")
        else:
            self._check_application(ray)

    def _missing_secrets(self) -> list[str]:
        external, endpoint = self.deployment.external, self.deployment.spec.endpoint
        references = [endpoint.api_key_secret_ref, external.auth_secret_ref if external else None]
        missing = []
        for reference in references:
            if reference is None:
                continue
            secret = self.world.api.objects.get(ObjectKey("Secret", self.key.namespace, reference.name))
            if secret is None or reference.key not in secret.get("data", {}):
                missing.append(reference.name)
        return missing

    def _needs_foreign(self) -> bool:
        theirs = set(self.world.theirs.values())
        wanted = needed_objects(self.key, self.deployment)
        return any(ObjectKey(kind.kind, self.key.namespace, name) in theirs for kind, name in wanted)

    def _not_ready(self) -> None:
        if self.conditions.get("Ready", {}).get("status") == "True":
            self.wrong("Ready, though it is not")

    def _check_application(self, ray: Ray, gateways: int | None = None) -> None:
        application = ray.applications.get(self.desired.name)
        if application is None or canonical(application.config) != canonical(self.desired.config):
            found = None if application is None else application.config
            self.wrong(f"Serve has {_differences(self.desired.config, found)}")
            return
        status = status_of(application, self.world.now)
        if status == "DEPLOY_FAILED":
            self.expect("ApplicationReady", "False")
            self.expect("Ready", "False")
            return
        if status != "RUNNING" or not all(one.settled() for one in application.deployments.values()):
            counts = [(one.name, one.target, len(one.replicas)) for one in application.deployments.values()]
            self.wrong(f"application {status} at rest: {counts}")
            return
        self.expect("Ready", "True")
        self.expect("ApplicationReady", "True")
        engines = len(application.deployments["Engine"].running)
        ready = self.document["status"].get("readyReplicas", 0)
        if ready != engines:
            self.wrong(f"readyReplicas {ready}, {engines} engines run")
        if engines == 0:
            self.expect("Ready", "True", "ScaledToZero")
        elif gateways is None or gateways:
            self.expect("Available", "True")

    # Managed

    def _check_managed(self) -> None:
        world, spec = self.world, self.deployment.spec
        clusters = world.clusters(*self.key)
        if spec.suspend:
            if clusters:
                self.wrong(f"suspended, and {len(clusters)} RayClusters are there")
            self.expect("Ready", "False", "Suspended")
            self.expect("Available", "False")
            return
        if self._missing_secrets():
            self.expect("SpecValid", "False", "SecretNotFound")
            self.expect("Ready", "False")
            return
        if self._needs_foreign():
            self.expect("SpecValid", "False", "ObjectNameConflict")
            self.expect("Stalled", "True", "ObjectNameConflict")
            self.expect("Ready", "False", "ObjectNameConflict")
            return
        if not world.kuberay.installed:
            self.expect("RayClusterReady", "False", "KubeRayNotInstalled")
            self.expect("Ready", "False")
            return
        wanted = names.cluster(self.key, spec_hash(self.deployment))
        current = next((cluster for cluster in clusters if cluster.key.name == wanted), None)
        if current is None:
            self.wrong(f"RayCluster {wanted} is not there")
            return
        if not current.head_ready:
            self._check_pending(clusters, current)
            return
        others = [cluster.key.name for cluster in clusters if cluster is not current]
        application = current.ray.applications.get(self.desired.name)
        broken = application is not None and status_of(application, world.now) == "DEPLOY_FAILED"
        if others and not broken:
            self.wrong(f"other RayClusters at rest: {others}")
        self._check_children(current, broken)
        gateways = world.ready_gateways(*self.key)
        self._check_application(current.ray, gateways)
        if not others and application is not None and not broken and not gateways:
            self.wrong("no gateway is ready behind the Service")
        if current.killed_busy and not world.bounds_edited:
            self.wrong(f"{current.killed_busy} pods were taken from running replicas")

    def _check_pending(self, clusters: list[RunningCluster], current: RunningCluster) -> None:
        if self.world.kuberay.room:
            self.wrong(f"the head of {current.key.name} never came up")
        self.expect("Ready", "False")
        serving = self.world.ready_gateways(*self.key)
        self.expect("Available", "True" if serving and len(clusters) > 1 else "False")

    def _check_children(self, cluster: RunningCluster, broken: bool) -> None:
        namespace, spec = self.key.namespace, self.deployment.spec
        theirs = set(self.world.theirs.values())  # where the spec does not ask for that name
        objects = {key: found for key, found in self.world.api.objects.items() if key not in theirs}
        service = objects.get(ObjectKey("Service", namespace, names.service(self.key)))
        if service is None:
            self.wrong("no Service")
        else:
            if (
                len(self.world.clusters(*self.key)) == 1
                and service["spec"]["selector"].get("ray.io/cluster") != cluster.key.name
            ):
                self.wrong(f"the Service selects {service['spec']['selector']}")
            ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
            if ports != {"http": spec.endpoint.http.port, "grpc": spec.endpoint.grpc.port}:
                self.wrong(f"the Service has ports {ports}")
        policy = objects.get(ObjectKey("NetworkPolicy", namespace, names.network_policy(self.key)))
        if (policy is not None) != self.deployment.managed.network_policy:
            self.wrong("NetworkPolicy is there, or is not, against the spec")
        if ObjectKey("Secret", namespace, names.token_secret(self.key)) not in objects:
            self.wrong("no token Secret")
        if broken:  # no roll is over, so no bound has followed
            return
        scaling = spec.autoscaling
        least, most = (
            (scaling.min_replicas, scaling.max_replicas) if scaling else (spec.replicas, max(spec.replicas, 1))
        )
        self._check_budget(objects.get(ObjectKey("PodDisruptionBudget", namespace, names.disruption_budget(self.key))))
        document = cluster.document
        assert document is not None
        groups = {group["groupName"]: group for group in document["spec"]["workerGroupSpecs"]}
        engine, gateway = groups["engine"], groups["gateway"]
        # The minimum follows Serve's count down: where load keeps engines up, it is still theirs.
        application = cluster.ray.applications.get(self.desired.name)
        kept = 0 if application is None else len(application.deployments["Engine"].running)
        if not least <= engine["minReplicas"] <= max(least, kept) or engine["maxReplicas"] < most:
            self.wrong(f"engine group {engine['minReplicas']}..{engine['maxReplicas']} for {least}..{most}")
        if gateway["minReplicas"] != spec.router.replicas or gateway["maxReplicas"] <= spec.router.replicas:
            self.wrong(f"gateway group {gateway['minReplicas']}..{gateway['maxReplicas']}")
        for kind in CHILD_KINDS:
            for child in self.world.api.every(kind, namespace):
                metadata = child["metadata"]
                if metadata.get("labels", {}).get(names.DEPLOYMENT_LABEL) != self.key.name:
                    continue
                owners = [owner["uid"] for owner in metadata.get("ownerReferences", ())]
                if owners != [self.document["metadata"]["uid"]]:
                    self.wrong(f"{kind} {metadata['name']} is owned by {owners}")

    def _check_budget(self, budget: Document | None) -> None:
        """One that is too large would block every drain, one that is too small protects nothing."""
        engines = self.document.get("status", {}).get("replicas", 0)
        least = 0 if budget is None else budget["spec"]["minAvailable"]
        if least != max(engines - 1, 0):
            self.wrong(f"PodDisruptionBudget of {least} for {engines} engines")


def _differences(wanted: Any, found: Any, path: str = "") -> str:
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        parts = [
            _differences(wanted.get(name), found.get(name), f"{path}.{name}")
            for name in {*wanted, *found}
            if wanted.get(name) != found.get(name)
        ]
        return ", ".join(parts)
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        pairs = zip(wanted, found, strict=True)
        return ", ".join(_differences(a, b, f"{path}[{n}]") for n, (a, b) in enumerate(pairs) if a != b)
    return f"{path}: {found!r} instead of {wanted!r}"
