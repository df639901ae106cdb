"""KubeRay and Ray's in-tree autoscaler: what becomes of RayClusters, with pods that are only counted."""

import base64
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo_testing.operator.sweep.apiserver import ApiServer, Document, ObjectKey
from octavo_testing.operator.sweep.clock import Timeline
from octavo_testing.operator.sweep.ray import Application, Deployment, Ray

IDLE_S = 60.0
NAME_LIMIT = 53


@dataclass(eq=False)
class Pod:
    """``occupied`` by a replica of Serve."""

    group: str
    labels: Mapping[str, str]
    ready: bool = False
    gone: bool = False
    occupied: bool = False
    idle_since: float = 0.0
    on_idle: Callable[[], None] = field(default=lambda: None)

    def alive(self) -> bool:
        return not self.gone

    def release(self) -> None:
        self.occupied = False
        self.on_idle()


class RunningCluster:
    """What KubeRay made of one RayCluster; outlives the object while its pods end."""

    def __init__(self, kuberay: "KubeRay", document: Document) -> None:
        metadata = document["metadata"]
        self.kuberay, self.timeline = kuberay, kuberay.timeline
        self.key = ObjectKey("RayCluster", metadata["namespace"], metadata["name"])
        self.uid: str = metadata["uid"]
        self.head_ready = False
        self.deleted = False
        self.pods: list[Pod] = []
        self.killed_busy = 0
        """Pods with a running replica that a lowered maximum took."""
        self._needed: dict[str, int] = {}
        self._settling = False
        address = f"http://{self.key.name}-head-svc.{self.key.namespace}.svc:8265"
        self.ray = Ray(self.timeline, kuberay.rng, address, self._place)
        self.ray.answers = False
        self.ray.on_change.append(self.settle)

    @property
    def document(self) -> Document | None:
        found = self.kuberay.api.objects.get(self.key)
        return found if found is not None and found["metadata"]["uid"] == self.uid else None

    @property
    def keeps_state(self) -> bool:
        return self.document is not None and "gcsFaultToleranceOptions" in self.document["spec"]

    def start_head(self) -> None:
        if self.deleted or not self.kuberay.room:
            if not self.deleted:
                self.kuberay.waiting.append(self.start_head)
            return
        self.timeline.after(self.kuberay.rng.uniform(5, 40), self._head_up)

    def _read_token(self) -> bool:
        """The head's environment takes it from a Secret; Ray does not start without it."""
        document = self.document
        if document is None:
            return False
        container = document["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
        variables = {variable["name"]: variable for variable in container.get("env", ())}
        if (variable := variables.get("RAY_AUTH_TOKEN")) is None:
            return True
        reference = variable["valueFrom"]["secretKeyRef"]
        secret = self.kuberay.api.objects.get(ObjectKey("Secret", self.key.namespace, reference["name"]))
        value = (secret or {}).get("data", {}).get(reference["key"])
        if value is None:
            return False
        self.ray.token = base64.b64decode(value).decode()
        return True

    def _head_up(self) -> None:
        if self.deleted:
            return
        if not self._read_token():
            self.timeline.after(10, self._head_up)
            return
        self.head_ready = True
        self._report()
        self.timeline.after(self.kuberay.rng.uniform(0, 4), self._answer)
        self.settle()

    def _answer(self) -> None:
        self.ray.answers = self.head_ready
        self.ray.advance()

    def restart_head(self) -> None:
        """With fault tolerance the workers, and what Serve runs on them, live on."""
        if not self.head_ready:
            return
        self.head_ready = self.ray.answers = False
        self._report()
        if not self.keeps_state:
            for pod in self.pods:
                pod.gone = True
            self.pods.clear()
            self.ray.lose_everything()
        self.start_head()

    def stop(self) -> None:
        self.deleted, self.head_ready = True, False
        self.ray.dead = True
        for pod in self.pods:
            pod.gone = True
        self.pods.clear()
        self.ray.lose_everything()

    def _report(self) -> None:
        if (document := self.document) is None:
            return
        condition = {"type": "HeadPodReady", "status": "True" if self.head_ready else "False"}
        condition["reason"] = "HeadPodRunningAndReady" if self.head_ready else "ContainersNotReady"
        condition["message"] = "" if self.head_ready else "containers with unready status: [ray-head]"
        condition["lastTransitionTime"] = document["metadata"]["creationTimestamp"]
        counts = {
            "desiredWorkerReplicas": len(self.pods),
            "availableWorkerReplicas": sum(pod.ready for pod in self.pods),
            "readyWorkerReplicas": self._ready_workers(),
        }
        state = {"state": "ready"} if self.head_ready else {}
        self.kuberay.api.patch_status(self.key, {"conditions": [condition], **state, **counts})

    def _ready_workers(self) -> int:
        """A gateway's pod is ready while a gateway in it answers, an engine's when Ray runs in it."""
        gateways = sum(
            replica.place in self.pods
            for application in self.ray.applications.values()
            for deployment in application.deployments.values()
            if deployment.name == "Gateway"
            for replica in deployment.running
        )
        return gateways + sum(pod.ready and pod.group == "engine" for pod in self.pods)

    # The autoscaler

    def _place(self, application: Application, deployment: Deployment) -> Pod | None:
        wanted = deployment.options.get("ray_actor_options", {}).get("resources", {})
        for pod in self.pods:
            if pod.ready and not pod.occupied and f"octavo_{pod.group}" in wanted:
                pod.occupied = True
                return pod
        return None

    def settle(self) -> None:
        """Once per moment: groups get the pods that Serve asks for, between their bounds."""
        if not self._settling:
            self._settling = True
            self.timeline.after(1.0, self._settle)

    def _settle(self) -> None:
        self._settling = False
        if (document := self.document) is None or not self.head_ready or "deletionTimestamp" in document["metadata"]:
            return
        for group in document["spec"]["workerGroupSpecs"]:
            self._settle_group(group)
        self._report()

    def _settle_group(self, group: Mapping[str, Any]) -> None:
        name, now = group["groupName"], self.timeline.now
        pods = [pod for pod in self.pods if pod.group == name]
        need = sum(
            1
            for application in self.ray.applications.values()
            for deployment in application.deployments.values()
            for replica in deployment.replicas
            if f"octavo_{name}" in deployment.options.get("ray_actor_options", {}).get("resources", {})
            and (replica.state == "STARTING" or (replica.place is not None and replica.place.alive()))
        )
        low, high = group["minReplicas"], group["maxReplicas"]
        desired = min(max(group["replicas"], low), high)
        if (more := min(max(need, low), high)) > desired:
            self._scale(name, more)
            return
        idle = [pod for pod in pods if not pod.occupied and pod.ready and now - pod.idle_since >= IDLE_S]
        victims = idle[: max(len(pods) - max(low, need), 0)]
        if victims:
            for pod in victims:
                self._end(pod)
            self._scale(name, len(pods) - len(victims))
            return
        # KubeRay itself deletes any pods above the count that is written down; here always the wrong ones.
        for pod in sorted(pods, key=lambda one: not one.occupied)[: max(len(pods) - desired, 0)]:
            self.killed_busy += pod.occupied
            self._end(pod)
        for _ in range(desired - len(pods)):
            self._new_pod(group)
        if len(pods) > max(low, need):
            self.timeline.after(IDLE_S, self.settle)

    def _new_pod(self, group: Mapping[str, Any]) -> None:
        labels = group["template"].get("metadata", {}).get("labels", {})
        labels = {**labels, "ray.io/cluster": self.key.name, "ray.io/group": group["groupName"]}
        pod = Pod(group["groupName"], labels, idle_since=self.timeline.now)
        pod.on_idle = lambda: self._idle(pod)
        self.pods.append(pod)
        self.timeline.after(self.kuberay.rng.uniform(2, 15), self._pod_up, pod)

    def _scale(self, name: str, replicas: int) -> None:
        def change(document: Document) -> None:
            for group in document["spec"]["workerGroupSpecs"]:
                if group["groupName"] == name:
                    group["replicas"] = replicas

        self.kuberay.api.edit(*self.key, change)

    def _idle(self, pod: Pod) -> None:
        pod.idle_since = self.timeline.now
        self.settle()

    def _pod_up(self, pod: Pod) -> None:
        if not pod.gone:
            pod.ready, pod.idle_since = True, self.timeline.now
            self.ray.advance()

    def _end(self, pod: Pod) -> None:
        pod.gone = True
        self.pods.remove(pod)
        self.ray.timeline.after(0.1, self.ray.advance)


class KubeRay:
    """Absent until ``install``."""

    def __init__(self, timeline: Timeline, rng: random.Random, api: ApiServer, installed: bool = True) -> None:
        self.timeline, self.rng, self.api = timeline, rng, api
        self.clusters: dict[str, RunningCluster] = {}
        """By uid; those whose pods are still ending too."""
        self.room = True
        """Whether another head pod finds a node."""
        self.waiting: list[Callable[[], None]] = []
        self.on_new: list[Callable[[RunningCluster], None]] = []
        if not installed:
            api.kinds_missing.add("RayCluster")
        api.watchers.append(self._watch)

    @property
    def installed(self) -> bool:
        return "RayCluster" not in self.api.kinds_missing

    def install(self) -> None:
        self.api.kinds_missing.discard("RayCluster")

    def make_room(self) -> None:
        self.room = True
        waiting, self.waiting = self.waiting, []
        for start in waiting:
            start()

    def cluster(self, namespace: str, name: str) -> RunningCluster | None:
        for found in self.clusters.values():
            if found.key[1:] == (namespace, name) and not found.deleted:
                return found
        return None

    def _watch(self, change: str, document: Document) -> None:
        if document["kind"] != "RayCluster":
            return
        uid = document["metadata"]["uid"]
        if change == "ADDED":
            assert len(document["metadata"]["name"]) <= NAME_LIMIT, document["metadata"]["name"]
            cluster = self.clusters[uid] = RunningCluster(self, document)
            for listener in self.on_new:
                listener(cluster)
            cluster.start_head()
        elif change == "DELETED":
            self.clusters[uid].deleted = True
            self.timeline.after(self.rng.uniform(0.5, 20), self.clusters[uid].stop)
        elif "deletionTimestamp" in document["metadata"] and not self.clusters[uid].deleted:
            self.clusters[uid].deleted = True
            self.timeline.after(self.rng.uniform(5, 30), self._clean_redis, uid)
        elif not self.clusters[uid].deleted:
            self.clusters[uid].settle()

    def _clean_redis(self, uid: str) -> None:
        cluster = self.clusters[uid]
        cluster.stop()
        if cluster.document is not None:
            self.api.set_finalizers(cluster.key, [])
