"""Writes down what a user does and sees on a real node, from ``helm install`` to ``kubectl delete``.

    .venv/bin/python e2e/node_transcript.py --output transcript.txt

With the seconds that each step takes, and what each pod uses of memory and processors, idle and under load. A node that
``make node`` started is used; else one is started, and ended.
"""

import argparse
import re
import time
from collections import defaultdict
from pathlib import Path

import grpc
import yaml
from transcript import Transcript

from octavo_api.v1 import inference_pb2, inference_pb2_grpc
from octavo_testing.kube.serving import complete
from octavo_testing.node import node as nodes
from octavo_testing.node import pods, requirements
from octavo_testing.node.node import Node
from octavo_testing.node.pods import InPods
from octavo_testing.node.streams import open_streams

NAMESPACE = "demo"
USAGE_S = 30


def life(log: Transcript, node: Node) -> None:
    log.title("The operator")
    log.write("$ helm install octavo helm/octavo --namespace octavo --create-namespace --set clusterWide=true")
    log.timed("helm install to a ready operator", lambda: pods.install(node))
    log.title("A ServingDeployment")
    began = time.time()
    log.run("apply", "-f", "-", stdin=yaml.safe_dump(pods.small(replicas=2), sort_keys=False))
    books = InPods(node.cluster.kubectl.within(NAMESPACE), "books")
    log.timed("apply to Ready", lambda: books.wait_ready(300))
    for component in ("head", "gateway", "engine"):
        for pod in books.pods(component):
            log.write("# " + pods.stages(books, pod, began))
    log.title("Tokens")
    log.write(f'$ curl http://{books.address}:8000/v1/completions -d \'{{"model": "books", …}}\'')
    log.timed("eight tokens by HTTP", lambda: log.write(repr(complete(books.base, "books"))))
    log.timed("eight tokens by streaming gRPC", lambda: log.write(_by_grpc(f"{books.address}:9000")))
    log.title("What there is")
    log.run("get", "sdep,raycluster,pod,svc,pdb", "-o", "wide")
    log.run("describe", "sdep", "books")
    log.run("get", "events", "--sort-by=.lastTimestamp")
    log.title("A request's life")
    complete(books.base, "books")
    time.sleep(1)
    for component in ("gateway", "engine"):
        for pod in books.pods(component):
            log.write(f"$ kubectl logs {pod} | tail -n 4")
            log.write("\n".join(line for line in books.log(pod).splitlines() if line.startswith("{"))[-1500:])
    log.title("Memory and processors")
    log.write(usage(node, "idle"))
    streams = open_streams(books.base, "books", 8, 7000)
    log.write(usage(node, "under 8 streams"))
    for stream in streams:
        stream.close()
    log.title("Deleted")
    log.timed("delete", lambda: log.run("delete", "sdep", "books", "--timeout=60s"))
    log.timed("nothing of it is left", lambda: pods.wait_until_nothing_is_left(books, 200))
    log.run("get", "sdep,raycluster,pod,svc,pdb,secret")
    log.summary()


def usage(node: Node, when: str) -> str:
    """Per pod: working set, and processors over the last seconds, by the kubelet's own account."""
    (name,) = node.cluster.kubectl.names("node")
    path = f"/api/v1/nodes/{name}/proxy/metrics/resource"

    def read() -> dict[str, dict[str, tuple[float, float]]]:
        """By metric and pod: value, and when it was taken, in seconds."""
        page = node.cluster.kubectl.run("get", "--raw", path)
        found: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
        pattern = r'^(\w+)\{namespace="(.*?)",pod="(.*?)"\} (\S+) (\d+)$'
        for metric, namespace, pod, value, at in re.findall(pattern, page, re.M):
            found[metric][f"{namespace}/{pod}"] = (float(value), int(at) / 1000)
        return found

    before = read()["pod_cpu_usage_seconds_total"]
    time.sleep(USAGE_S)
    found = read()
    lines = [f"{when}:"]
    for pod, (spent, at) in sorted(found["pod_cpu_usage_seconds_total"].items()):
        if pod in before and at > before[pod][1]:
            used = (spent - before[pod][0]) / (at - before[pod][1])
            memory = found["pod_memory_working_set_bytes"][pod][0] / 2**20
            lines.append(f"{memory:7.0f} MiB {used:6.3f} processors  {pod}")
    return "\n".join(lines)


def _by_grpc(address: str) -> str:
    with grpc.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        request = inference_pb2.GenerateRequest(model="books", text="Once upon a time", sampling={"max_tokens": 8})
        parts = [choice.text for part in stub.GenerateStream(request, timeout=60) for choice in part.choices]
    return f"{''.join(parts)!r} in {len(parts)} messages"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("/dev/stdout"))
    options = parser.parse_args()
    requirements.install()
    with options.output.open("w") as out:
        found = nodes.find()
        began = time.monotonic()
        node = found or nodes.start()
        try:
            if found is None:
                print(f"# node ready: {time.monotonic() - began:.1f} s", file=out)
            began = time.monotonic()
            nodes.load(node, nodes.archives())
            print(f"# images built and loaded: {time.monotonic() - began:.1f} s", file=out)
            node.prepare(NAMESPACE)
            life(Transcript(out, node.cluster.kubectl.within(NAMESPACE)), node)
            pods.uninstall(node, NAMESPACE)
        finally:
            if found is None:
                nodes.stop()


if __name__ == "__main__":
    main()
