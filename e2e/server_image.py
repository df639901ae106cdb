"""Builds the server's image from its Dockerfile and serves from it on a real node, with nothing of the machine mounted.

    .venv/bin/python e2e/server_image.py

It takes the Dockerfile for GPUs: its torch comes from the ordinary package index, and computes on CPUs as well. Minutes
and 40 GB of disk; `make node` must not be up.
"""

# ruff: noqa: E402
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from octavo_e2e import pods
from octavo_e2e.node import build, environment, requirements
from octavo_e2e.node import node as nodes
from octavo_e2e.node.node import Node, chart_image
from octavo_e2e.serving import complete

NAMESPACE = "image"
_RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
_LITTLE = {"cpu": "100m", "memory": "256Mi"}
_DOCUMENT = pods.small(
    resources={"requests": _LITTLE},
    router={"resources": {"requests": _LITTLE}},
    rayCluster={"managed": {"head": {"resources": {"requests": _LITTLE, "limits": {"cpu": 1, "memory": "2Gi"}}}}},
)


def life(node: Node) -> None:
    pods.install(node)
    kubectl = node.cluster.kubectl.within("")
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": _RESTRICTED}})
    began = time.time()
    books = pods.serve(node, NAMESPACE, _DOCUMENT)
    books.wait_ready(600)
    print(f"apply to Ready: {time.time() - began:.1f} s", flush=True)
    for component in ("head", "gateway", "engine"):
        for name in books.pods(component):
            print(pods.stages(books, name, began))
    print(f"answered: {complete(books.base, 'books')!r}", flush=True)
    pods.end(books)


def main() -> None:
    requirements.install()
    began = time.monotonic()
    image = build.build(
        environment.CHECKOUT / "docker/server-cuda.Dockerfile", environment.CHECKOUT, chart_image("serverImage")
    )
    print(f"image built: {time.monotonic() - began:.0f} s, {image.stat().st_size / 1e9:.1f} GB", flush=True)
    node = nodes.start()
    try:
        began = time.monotonic()
        nodes.load(node, [nodes.operator_image(), image])
        print(f"images loaded: {time.monotonic() - began:.0f} s", flush=True)
        life(node)
    finally:
        nodes.stop()


if __name__ == "__main__":
    main()
