"""A deletion ends and leaves nothing, whatever else is gone already."""

import time
from collections.abc import Iterator

import pytest

from octavo_testing.node import pods
from octavo_testing.node.node import Node
from octavo_testing.node.pods import InPods
from octavo_testing.waiting import eventually

pytestmark = [pytest.mark.node, pytest.mark.full, pytest.mark.timeout(600)]
NAMESPACE = "deletes"


@pytest.fixture
def books(installed: Node) -> Iterator[InPods]:
    installed.prepare(NAMESPACE)  # one test deletes it
    serving = pods.serve(installed, NAMESPACE, pods.small())
    serving.wait_ready(300)
    yield serving
    pods.end(serving)


def test_before_ray_is_up(installed: Node) -> None:
    books = pods.serve(installed, NAMESPACE, pods.small())
    eventually("its engine waits for Ray", lambda: any(map(books.initializes, books.pods("engine"))), 60, 0.2)
    _delete(books, "before its head is up")


def test_with_ray_dead(books: InPods) -> None:
    (head,) = books.pods("head")
    books.kubectl.run("delete", "pod", head, "--force", "--grace-period=0")
    _delete(books, "with its head dead")


def test_with_the_operator_down(books: InPods, installed: Node) -> None:
    operator = installed.cluster.kubectl.within(pods.NAMESPACE)
    operator.run("scale", f"deployment/{pods.RELEASE}", "--replicas=0")
    eventually("no operator", lambda: not operator.names("pod"), timeout_s=60)
    try:
        _delete(books, "with the operator down")
    finally:
        operator.run("scale", f"deployment/{pods.RELEASE}", "--replicas=1")
        operator.run("rollout", "status", f"deployment/{pods.RELEASE}", "--timeout=60s")


def test_with_its_namespace(books: InPods, installed: Node) -> None:
    """Kubernetes looks at a namespace again every five minutes while pods with a long grace period are in it."""
    began = time.monotonic()
    installed.cluster.kubectl.run("delete", "namespace", NAMESPACE, "--timeout=400s", timeout_s=410)
    print(f"its namespace and all in it: {time.monotonic() - began:.1f} s")


def _delete(books: InPods, how: str) -> None:
    took = books.delete()
    print(f"deleted {how}: {took:.1f} s, its pods too: {pods.wait_until_nothing_is_left(books, 200):.1f} s later")
