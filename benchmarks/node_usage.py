"""Memory and processors that the pods of a deployment use on a real node, idle and under load.

    python benchmarks/node_usage.py

A node that ``make node`` started is used; otherwise one is started, and ended.
"""

import argparse
import re
import time
from collections import defaultdict

from octavo_testing.node import pods, requirements
from octavo_testing.node.node import Node, borrowed
from octavo_testing.streams import open_streams

NAMESPACE = "demo"
USAGE_S = 30


def measure(node: Node) -> None:
    node.prepare(NAMESPACE)
    pods.install(node)
    books = pods.serve(node, NAMESPACE, pods.small(replicas=2))
    books.wait_ready(300)
    print(usage(node, "idle"))
    streams = open_streams(books.base, "books", 8, 7000)
    print(usage(node, "under 8 streams"))
    for stream in streams:
        stream.close()
    pods.end(books)
    pods.uninstall(node, NAMESPACE)


def usage(node: Node, when: str) -> str:
    """Return the working set of each pod, and its processors over the last seconds, as the kubelet counts them."""
    (name,) = node.cluster.kubectl.names("node")
    path = f"/api/v1/nodes/{name}/proxy/metrics/resource"

    def read() -> dict[str, dict[str, tuple[float, float]]]:
        """Return value and time in seconds, by metric and pod."""
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


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    requirements.install()
    with borrowed() as node:
        measure(node)


if __name__ == "__main__":
    main()
