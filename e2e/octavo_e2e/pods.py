"""ServingDeployments whose pods run on the node, and what is seen of them from outside."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo_e2e.documents import deployment, merged
from octavo_e2e.helm import Helm
from octavo_e2e.kubectl import eventually
from octavo_e2e.node import environment
from octavo_e2e.node.node import Node
from octavo_e2e.serving import Serving

NAMESPACE = "octavo"
RELEASE = "octavo"

_SMALL: Mapping[str, Any] = {
    "resources": {"limits": {"cpu": 2, "memory": "3Gi"}, "requests": {"cpu": "200m", "memory": "1Gi"}},
    "router": {
        "resources": {"limits": {"cpu": 1, "memory": "1536Mi"}, "requests": {"cpu": "100m", "memory": "512Mi"}},
    },
    "rayCluster": {
        "managed": {
            "head": {
                "resources": {"limits": {"cpu": 1, "memory": "2Gi"}, "requests": {"cpu": "100m", "memory": "512Mi"}},
            },
        },
    },
    "engine": {"kvCacheMemoryBytes": "256Mi", "numThreads": 1},
}
"""Head, gateway, two engines and one more that surges fit two processors."""


def small(name: str = "books", **spec: Any) -> dict[str, Any]:
    return environment.equip(deployment(name, **merged(_SMALL, spec)))


@dataclass(frozen=True, slots=True)
class InPods(Serving):
    @property
    def base(self) -> str:
        """The Service's address, with ``/v1``; from this machine it is reached as it is."""
        return f"http://{self.address}:8000/v1"

    @property
    def address(self) -> str:
        found = self.kubectl.get("service", self.name)
        assert found is not None
        return str(found["spec"]["clusterIP"])

    def pods(self, component: str) -> dict[str, str]:
        """Names and uids of those that are not on their way out."""
        selector = f"serving.octavo.dev/deployment={self.name},app.kubernetes.io/component={component}"
        found = self.kubectl.list("pod", selector)
        return {p["metadata"]["name"]: p["metadata"]["uid"] for p in found if "deletionTimestamp" not in p["metadata"]}

    def log(self, pod: str) -> str:
        return self.kubectl.run("logs", pod, "--all-containers=false", "--container=ray-worker")

    def delete(self, *flags: str, timeout_s: float = 60) -> float:
        """Seconds until the resource is gone."""
        began = time.monotonic()
        self.kubectl.run("delete", f"sdep/{self.name}", f"--timeout={timeout_s:.0f}s", *flags, timeout_s=timeout_s + 10)
        return time.monotonic() - began

    def left(self) -> list[str]:
        """What is there of the deployment, Ray's and KubeRay's own objects too, by kind and name."""
        kinds = "raycluster,pod,service,endpointslice,secret,serviceaccount,poddisruptionbudget,networkpolicy,configmap"
        names = [(found["kind"], found["metadata"]["name"]) for found in self.kubectl.list(kinds)]
        return [f"{kind}/{name}" for kind, name in names if name == self.name or name.startswith(f"{self.name}-")]


def pod(name: str, script: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """One that Pod Security ``restricted`` admits, with this machine's programs and the checkout's environment."""
    container = {
        "name": "main",
        "image": "ghcr.io/octavo-dev/octavo-server:0.1.0",
        "imagePullPolicy": "Never",
        "command": ["bash", "-c", script],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": environment.pod_mounts(),
    }
    spec = {
        "containers": [container],
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "runAsUser": environment.USER},
        "terminationGracePeriodSeconds": 1,
        "volumes": environment.pod_volumes(),
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": dict(labels or {})}, "spec": spec}


def install(node: Node, *values: str) -> Helm:
    """The chart as printed, with the operator in a pod; returns when that is ready."""
    helm = Helm(node.cluster.admin, node.cluster.folder, NAMESPACE)
    helm.install(RELEASE, "--set", "clusterWide=true", *values)
    node.cluster.kubectl.within(NAMESPACE).run(
        "rollout", "status", f"deployment/{RELEASE}", "--timeout=120s", timeout_s=130
    )
    return helm


def serve(node: Node, namespace: str, document: Mapping[str, Any]) -> InPods:
    serving = InPods(node.cluster.kubectl.within(namespace), str(document["metadata"]["name"]))
    serving.kubectl.apply(document)
    return serving


def end(node: Node, *servings: InPods) -> None:
    """Removes deployments, the operator and their namespaces. A namespace by itself would take minutes."""
    for serving in servings:
        if serving.exists:
            serving.delete()
    for serving in servings:
        wait_until_nothing_is_left(serving, 200)
    Helm(node.cluster.admin, node.cluster.folder, NAMESPACE).uninstall(RELEASE)
    for namespace in {serving.kubectl.namespace for serving in servings}:
        node.forget(namespace)


def wait_until_nothing_is_left(serving: InPods, timeout_s: float = 120) -> float:
    began = time.monotonic()
    try:
        eventually("nothing is left", lambda: not serving.left(), timeout_s, 0.5)
    except AssertionError:
        raise AssertionError(f"left: {', '.join(serving.left())}") from None
    return time.monotonic() - began
