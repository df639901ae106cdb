"""Writes down what a user does and sees, from ``helm install`` to ``kubectl delete``, with the seconds that each takes.

    .venv/bin/python e2e/transcript.py --output transcript.txt

External mode runs on a real Ray of this machine, with tokens; managed mode shows the objects that appear as YAML, on
KubeRay and a fake node. The API server is real in both.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import yaml

from octavo_testing import ray_host
from octavo_testing.kube import cluster as clusters
from octavo_testing.kube.cluster import Cluster
from octavo_testing.kube.documents import deployment
from octavo_testing.kube.kubectl import Kubectl
from octavo_testing.kube.operator import Installation, Operator
from octavo_testing.kube.serve_stub import running_stub
from octavo_testing.kube.serving import Serving, complete
from octavo_testing.ray_host import RayHost
from octavo_testing.waiting import eventually

OWNED = "serving.octavo.dev/deployment"
OBJECTS = "rayclusters.ray.io,services,poddisruptionbudgets,secrets,networkpolicies"


class Transcript:
    """``$ command`` lines, what they print, and ``# … s`` lines."""

    def __init__(self, out: TextIO, kubectl: Kubectl) -> None:
        self._out = out
        self._kubectl = kubectl
        self.times: list[tuple[str, float]] = []

    def title(self, text: str) -> None:
        self.write(f"\n## {text}\n")

    def write(self, text: str) -> None:
        print(text, file=self._out, flush=True)

    def run(self, *arguments: str, stdin: str | None = None) -> str:
        self.write(f"$ kubectl {' '.join(arguments)}")
        if stdin is not None:
            self.write("\n".join(f"  | {line}" for line in stdin.rstrip().splitlines()))
        said = self._kubectl.run(*arguments, stdin=stdin)
        self.write(said.rstrip())
        return said

    def timed(self, what: str, act: Callable[[], object]) -> None:
        began = time.monotonic()
        act()
        took = time.monotonic() - began
        self.times.append((what, took))
        self.write(f"# {what}: {took:.1f} s\n")

    def summary(self) -> None:
        self.title("Seconds")
        for what, took in self.times:
            self.write(f"{took:7.1f}  {what}")


def external(out: TextIO, cluster: Cluster, installation: Installation, ray: RayHost, operator: Operator) -> None:
    namespace = "demo"
    cluster.kubectl.run("create", "namespace", namespace)
    kubectl = cluster.kubectl.within(namespace)
    log, serving = Transcript(out, kubectl), Serving(kubectl, "books")
    kubectl.run("create", "secret", "generic", "ray-token", f"--from-literal=auth_token={ray.token}")
    reference = {"dashboardURL": ray.dashboard_url, "authSecretRef": {"name": "ray-token"}}
    document = deployment(
        "books",
        rayCluster={"external": reference},
        resources={"limits": {"cpu": 1}},
        engine={"kvCacheMemoryBytes": "64Mi"},
    )

    def actors(name: str) -> set[str]:
        found = ray.applications().get(f"{namespace}.books", {}).get("deployments", {}).get(name, {})
        return {r["actor_id"] for r in found.get("replicas", []) if r["state"] == "RUNNING"}

    def kept(what: str, act: Callable[[], object]) -> None:
        before = {name: actors(name) for name in ("Engine", "Gateway")}
        log.timed(what, act)
        for name, ids in before.items():
            now = actors(name)
            log.write(f"# {name}: {len(ids & now)} replicas kept, {len(now - ids)} new, {len(ids - now)} gone")

    log.title("A ServingDeployment on a Ray that somebody else runs")
    log.run("apply", "-f", "-", stdin=yaml.safe_dump(document, sort_keys=False))
    log.timed("apply to Ready", lambda: log.run("wait", "--for=condition=Ready", "sdep/books", "--timeout=180s"))
    log.run("get", "sdep", "books", "-o", "wide")
    url = serving.status["urls"]["http"]
    log.write(f'$ curl {url}/completions -d \'{{"model": "books", "prompt": "Once upon a time", …}}\'')
    log.timed("eight tokens through Serve's proxy", lambda: log.write(repr(complete(url, "books"))))
    log.write(json.dumps(serving.status["urls"], indent=1))

    def edit(change: dict[str, Any]) -> Callable[[], None]:
        def act() -> None:
            log.run("patch", "sdep", "books", "--type=merge", f"--patch={json.dumps({'spec': change})}")
            log.run("wait", "--for=condition=Ready", "sdep/books", "--timeout=180s")

        return act

    log.title("A live field, a rolling field, more replicas, fewer")
    kept("live edit to Ready", edit({"engine": {"maxNumQueuedReqs": 7}}))
    kept("rolling edit to Ready", edit({"engine": {"maxNumSeqs": 16}}))

    def scaled(replicas: int) -> Callable[[], None]:
        def act() -> None:
            log.run("scale", "sdep/books", f"--replicas={replicas}")
            log.run("wait", "--for=condition=Ready", "sdep/books", "--timeout=180s")

        return act

    kept("scale 1 to 2", scaled(2))
    log.run("get", "sdep", "books")
    kept("scale 2 to 1", scaled(1))

    log.title("Suspended, and back")

    def suspend() -> None:
        log.run("patch", "sdep", "books", "--type=merge", '--patch={"spec":{"suspend":true}}')
        serving.wait("Progressing", "False", "Suspended")

    log.timed("suspend, until all is stopped", suspend)
    log.run("get", "sdep", "books")
    log.timed("resume to Ready", edit({"suspend": False}))

    log.title("What it says of itself")
    log.run("describe", "sdep", "books")
    log.run("get", "events", "--sort-by=.metadata.creationTimestamp")

    log.title("Deleted")
    log.timed("delete, Ray up", lambda: log.run("delete", "sdep", "books", "--timeout=60s"))
    log.write(f"# applications left in Ray: {sorted(ray.applications())}")
    log.run("get", f"sdep,{OBJECTS}", "--ignore-not-found")

    document["metadata"]["name"] = "dead"
    kubectl.apply(document)
    Serving(kubectl, "dead").wait_ready()
    ray.end()
    log.title("Deleted while Ray is dead")
    log.run("annotate", "sdep", "dead", "serving.octavo.dev/force-delete=true")
    log.timed("delete, Ray dead, with force-delete", lambda: log.run("delete", "sdep", "dead", "--timeout=60s"))
    log.run("get", "events", "--field-selector=involvedObject.name=dead", "--sort-by=.metadata.creationTimestamp")
    log.run("get", f"sdep,{OBJECTS}", "--ignore-not-found")
    log.summary()


def managed(out: TextIO, cluster: Cluster, installation: Installation, operator: Operator) -> None:
    namespace = "managed"
    cluster.kubectl.run("create", "namespace", namespace)
    kubectl = cluster.kubectl.within(namespace)
    kubectl.run("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    log, serving = Transcript(out, kubectl), Serving(kubectl, "books")
    log.title("A ServingDeployment with a Ray cluster of its own")
    log.run("apply", "-f", "-", stdin=yaml.safe_dump(deployment(replicas=2), sort_keys=False))
    log.timed("apply to Ready", serving.wait_ready)
    log.run("get", f"sdep,{OBJECTS},pods")
    for item in kubectl.list(OBJECTS, f"{OWNED}=books"):
        log.title(f"{item['kind']} {item['metadata']['name']}")
        log.write(yaml.safe_dump(shown(item), sort_keys=False))

    def versions() -> dict[str, tuple[str, int, str]]:
        return {
            f"{item['kind']}/{item['metadata']['name']}": (
                item["metadata"]["uid"],
                int(item["metadata"].get("generation", 0)),
                json.dumps(item.get("spec"), sort_keys=True),
            )
            for item in kubectl.list(OBJECTS, f"{OWNED}=books")
        }

    def edit(what: str, change: dict[str, Any]) -> None:
        before = versions()

        def act() -> None:
            log.run("patch", "sdep", "books", "--type=merge", f"--patch={json.dumps({'spec': change})}")
            serving.wait_ready()
            eventually("one cluster", lambda: len(kubectl.list("rayclusters.ray.io", f"{OWNED}=books")) == 1)

        log.timed(what, act)
        compare(before)

    def compare(before: dict[str, tuple[str, int, str]]) -> None:
        after = versions()
        for name in sorted(before | after):
            if name not in after:
                said = "gone"
            elif name not in before:
                said = "new"
            elif before[name][0] != after[name][0]:
                said = "made anew"
            elif before[name][2] != after[name][2]:
                said = "changed in place"
            else:
                said = "as it was"
            log.write(f"#   {name}: {said}")

    log.title("What each kind of edit changes")
    edit("live field (engine.maxNumQueuedReqs)", {"engine": {"maxNumQueuedReqs": 7}})
    edit("rolling field (engine.maxNumSeqs)", {"engine": {"maxNumSeqs": 16}})
    edit("replicas 2 to 3", {"replicas": 3})
    edit("endpoint.service.annotations", {"endpoint": {"service": {"annotations": {"a": "b"}}}})
    edit("new cluster in place (resources.limits.cpu)", {"resources": {"limits": {"cpu": 3}}})
    edit("rollout.strategy NewCluster", {"rollout": {"strategy": "NewCluster", "drainSeconds": 1}})
    edit("new cluster beside the old one (resources.limits.cpu)", {"resources": {"limits": {"cpu": 4}}})

    log.title("The operator is upgraded")
    before = versions()
    operator.restart("--image=ghcr.io/octavo-dev/octavo-server:9.9.9")
    time.sleep(5)
    compare(before)
    log.write("$ helm upgrade octavo helm/octavo --set serverImage.tag=9.9.9 …")
    installation.helm.upgrade("octavo", *installation.flags, "--set=serverImage.tag=9.9.9")
    time.sleep(3)
    compare(before)
    log.run("describe", "sdep", "books")
    log.run("get", "events", "--sort-by=.metadata.creationTimestamp")

    log.title("Deleted while the operator is down")
    operator.stop()
    log.timed("delete, operator down", lambda: log.run("delete", "sdep", "books", "--timeout=60s"))
    log.timed("children gone", lambda: eventually("gone", lambda: not kubectl.list(f"{OBJECTS},pods")))
    log.run("get", f"sdep,{OBJECTS},pods,endpointslices", "--ignore-not-found")
    operator.start()

    log.title("The namespace goes")
    log.run("apply", "-f", "-", stdin=yaml.safe_dump(deployment(replicas=2), sort_keys=False))
    serving.wait_ready()
    log.timed("delete the namespace", lambda: kubectl.run("delete", "namespace", namespace, "--timeout=90s"))
    log.summary()


def shown(item: dict[str, Any]) -> dict[str, Any]:
    """Without what the API server adds, and without a Secret's values."""
    metadata = {k: v for k, v in item["metadata"].items() if k in ("name", "labels", "annotations", "ownerReferences")}
    item = {"apiVersion": item["apiVersion"], "kind": item["kind"], **item, "metadata": metadata}
    item.pop("status", None)
    if item["kind"] == "Secret":
        item["data"] = dict.fromkeys(item["data"], "…")
    return item


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("/dev/stdout"))
    parser.add_argument("--only", choices=("external", "managed"))
    options = parser.parse_args()
    with options.output.open("w") as out, tempfile.TemporaryDirectory(prefix="octavo-e2e-") as name:
        folder = Path(name)
        began = time.monotonic()
        with clusters.running(folder) as cluster:
            print(f"# cluster up: {time.monotonic() - began:.1f} s", file=out)
            print("$ helm install octavo helm/octavo --namespace octavo --create-namespace", file=out)
            began = time.monotonic()
            installation = Installation.make(cluster)
            print(f"# helm install: {time.monotonic() - began:.1f} s", file=out)
            if options.only != "managed":
                with ray_host.running(cpus=16) as ray, installation.operator() as operator:
                    external(out, cluster, installation, ray, operator)
            if options.only != "external":
                with running_stub(folder) as stub, installation.operator(dashboard=stub.dashboard) as operator:
                    managed(out, cluster, installation, operator)


if __name__ == "__main__":
    main()
