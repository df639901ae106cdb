"""ServingDeployments whose pods run on the node, and their state from outside."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from octavo_testing.kube.documents import deployment, merged
from octavo_testing.kube.helm import Helm
from octavo_testing.kube.kubectl import Kubectl
from octavo_testing.kube.serving import Serving
from octavo_testing.node import environment
from octavo_testing.node.node import Node, chart_image
from octavo_testing.waiting import eventually

NAMESPACE = "octavo"
RELEASE = "octavo"

_SMALL: Mapping[str, Any] = {
    "resources": {"limits": {"cpu": 2, "memory": "3Gi"}},
    "router": {"resources": {"limits": {"cpu": 1, "memory": "1536Mi"}}},
    "engine": {"kvCacheMemoryBytes": "256Mi", "numThreads": 1},
}
"""Engines that leave each other room on two processors, and whose cache holds as many tokens on every kind of them."""


def small(name: str = "books", **spec: Any) -> dict[str, Any]:
    return deployment(name, **merged(_SMALL, spec))


@dataclass(frozen=True, slots=True)
class InPods(Serving):
    @property
    def base(self) -> str:
        """The Service's address, with ``/v1``; from this machine it is reached as it is."""
        return f"http://{self.address}:8000/v1"

    @property
    def address(self) -> str:
        return str(self.kubectl.get("service", self.name)["spec"]["clusterIP"])

    def pods(self, component: str) -> dict[str, str]:
        """Return names and uids of the pods that are not being deleted."""
        selector = f"serving.octavo.dev/deployment={self.name},app.kubernetes.io/component={component}"
        found = self.kubectl.list("pod", selector)
        return {p["metadata"]["name"]: p["metadata"]["uid"] for p in found if "deletionTimestamp" not in p["metadata"]}

    def initializes(self, pod: str) -> bool:
        """Return whether its init container runs."""
        found = self.kubectl.find("pod", pod) or {}
        states = [s["state"] for s in found.get("status", {}).get("initContainerStatuses", ())]
        return any("running" in state for state in states)

    def log(self, pod: str) -> str:
        return self.kubectl.run("logs", pod, "--all-containers=false", "--container=ray-worker")

    def applications(self) -> str:
        """Return the dashboard's JSON about Serve, requested in the head's pod."""
        (head,) = self.pods("head")
        script = (
            "import os, urllib.request as r; print(r.urlopen(r.Request('http://127.0.0.1:8265/api/serve/applications/',"
            " headers={'Authorization': 'Bearer ' + os.environ['RAY_AUTH_TOKEN']})).read().decode())"
        )
        return self.kubectl.run("exec", head, "--container=ray-head", "--", "python", "-c", script)

    def delete(self, *flags: str, timeout_s: float = 60) -> float:
        """Delete the resource, and return the seconds until it is gone."""
        began = time.monotonic()
        self.kubectl.run("delete", f"sdep/{self.name}", f"--timeout={timeout_s:.0f}s", *flags, timeout_s=timeout_s + 10)
        return time.monotonic() - began

    def left(self) -> list[str]:
        """Return the deployment's objects by kind and name, also Ray's and KubeRay's own."""
        kinds = "raycluster,pod,service,endpointslice,secret,serviceaccount,poddisruptionbudget,networkpolicy,configmap"
        names = [(found["kind"], found["metadata"]["name"]) for found in self.kubectl.list(kinds)]
        return [f"{kind}/{name}" for kind, name in names if name == self.name or name.startswith(f"{self.name}-")]


def pod(name: str, script: str, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """One that Pod Security ``restricted`` admits, with this machine's programs and the checkout's environment."""
    container = {
        "name": "main",
        "image": chart_image("serverImage"),
        "imagePullPolicy": "Never",
        "command": ["bash", "-c", script],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    spec = {
        "containers": [container],
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "runAsUser": environment.USER},
        "terminationGracePeriodSeconds": 1,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": dict(labels or {})}, "spec": spec}


def start_redis(kubectl: Kubectl, *flags: str) -> None:
    """A pod and a Service ``redis``. Debian's server is one program under several names."""
    server = "exec -a redis-server redis-check-rdb --bind 0.0.0.0 --protected-mode no --save '' --dir /tmp"
    ports = {"selector": {"app": "redis"}, "ports": [{"port": 6379}]}
    kubectl.apply(
        pod("redis", " ".join((server, *flags)), labels={"app": "redis"}),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "redis"}, "spec": ports},
    )
    kubectl.run("wait", "--for=condition=Ready", "pod/redis", "--timeout=60s")


def install(node: Node, *values: str) -> Helm:
    """Install the chart as printed, with the operator in a pod; return when the pod is ready."""
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


def end(*servings: InPods) -> None:
    """Delete deployments, and wait for their pods, which a namespace would keep for minutes."""
    for serving in servings:
        if serving.exists:
            serving.delete()
    for serving in servings:
        wait_until_nothing_is_left(serving, 200)


def uninstall(node: Node, *namespaces: str) -> None:
    """Remove the operator, and namespaces without deployments."""
    Helm(node.cluster.admin, node.cluster.folder, NAMESPACE).uninstall(RELEASE)
    for namespace in namespaces:
        node.forget(namespace)


def stages(serving: InPods, pod: str, began: float) -> str:
    """Return the seconds from ``began`` to each stage of a pod; Kubernetes writes whole seconds."""
    found = serving.kubectl.get("pod", pod)
    reached = {c["type"]: c["lastTransitionTime"] for c in found["status"]["conditions"] if c["status"] == "True"}
    at = {"made": found["metadata"]["creationTimestamp"]} | {
        type_: reached[type_] for type_ in ("PodScheduled", "Initialized", "Ready") if type_ in reached
    }
    after = (f"{name} {datetime.fromisoformat(when).timestamp() - began:.0f} s" for name, when in at.items())
    return f"{pod}: {', '.join(after)}"


def wait_until_nothing_is_left(serving: InPods, timeout_s: float = 120) -> float:
    began = time.monotonic()
    try:
        eventually("nothing is left", lambda: not serving.left(), timeout_s, 0.5)
    except AssertionError:
        raise AssertionError(f"left: {', '.join(serving.left())}") from None
    return time.monotonic() - began
