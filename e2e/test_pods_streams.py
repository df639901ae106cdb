"""Streams that open before a change and outlive it: none is cut, and each equals an undisturbed greedy run.

While they run, their replicas stay, and the deployment is not `Ready` again. New requests show which replicas answer.
"""

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from octavo_testing.kube.kubectl import Refused
from octavo_testing.node import pods
from octavo_testing.node.node import Node
from octavo_testing.node.pods import InPods
from octavo_testing.streams import Stream, none_was_cut, open_streams
from octavo_testing.waiting import eventually
from octavo_testing.web import get

pytestmark = [pytest.mark.node, pytest.mark.full, pytest.mark.timeout(600)]
NAMESPACE = "streams"
STREAMS, ENDLESS = 8, 7000


@pytest.fixture(scope="module")
def books(installed: Node) -> Iterator[InPods]:
    document = pods.small(replicas=2, rollout={"strategy": "NewCluster"})
    serving = pods.serve(installed, NAMESPACE, document)
    serving.wait_ready(300)
    yield serving
    pods.end(serving)


@pytest.fixture
def streams(books: InPods) -> Iterator[list[Stream]]:
    books.wait_ready(300)
    opened = open_streams(books.base, "books", STREAMS, ENDLESS)
    yield opened
    for stream in opened:
        stream.close()


def test_a_rolling_edit(books: InPods, streams: list[Stream]) -> None:
    gateways, old = books.pods("gateway"), answering(books)
    assert len(old) == 2
    began = time.monotonic()
    books.edit({"engine": {"maxNumSeqs": 32}})
    eventually("two others answer", lambda: len(now := answering(books)) == 2 and not now & old, 300, 1)
    print(f"rolling edit of two engines under {STREAMS} streams: {time.monotonic() - began:.1f} s")
    assert books.pods("gateway") == gateways
    none_was_cut(streams)


def test_an_eviction_of_one_of_two_engines_and_a_refused_second(books: InPods, streams: list[Stream]) -> None:
    first, second = books.pods("engine")
    old = answering(books)
    began = time.monotonic()
    _evict(books, first)
    with pytest.raises(Refused, match="disruption budget"):
        _evict(books, second)
    eventually("another one answers", lambda: len(now := answering(books)) == 2 and len(now & old) == 1, 300, 1)
    print(f"an engine evicted, until two answer: {time.monotonic() - began:.1f} s")
    none_was_cut(streams)


def test_a_drain_of_the_node(node: Node, books: InPods, streams: list[Stream]) -> None:
    """Of its engines. It is the only node: once the first one is evicted, new pods may come to it again."""
    (name,) = node.cluster.kubectl.names("node")
    first, old = set(books.pods("engine")), answering(books)
    selector = f"--pod-selector=serving.octavo.dev/deployment={books.name},app.kubernetes.io/component=engine"
    flags = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=400s", selector)
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        drain = pool.submit(node.cluster.kubectl.run, "drain", name, *flags, timeout_s=410)
        try:
            eventually("one engine goes", lambda: len(set(books.pods("engine")) & first) == 1, timeout_s=30)
            assert answering(books) == old, "the old replica serves until its successor does"
        finally:
            node.cluster.kubectl.run("uncordon", name)
        eventually("two others answer", lambda: len(now := answering(books)) == 2 and not now & old, 300, 1)
        print(f"the node drained of both engines, until two others answer: {time.monotonic() - began:.1f} s")
        none_was_cut(streams)
        drain.result()


def test_a_gateways_pod_is_deleted(books: InPods, streams: list[Stream]) -> None:
    (gateway,) = books.pods("gateway")
    began = time.monotonic()
    books.kubectl.run("delete", "pod", gateway, "--wait=false")
    eventually("another gateway", lambda: _new(books, gateway), timeout_s=200, every_s=1)
    eventually("it answers", lambda: answering(books), timeout_s=200, every_s=1)
    print(f"the only gateway's pod deleted, until another answers: {time.monotonic() - began:.1f} s")
    none_was_cut(streams)


def test_scaling_down(books: InPods, streams: list[Stream]) -> None:
    began = time.monotonic()
    books.edit({"replicas": 1})
    eventually("one answers alone", lambda: len(answering(books)) == 1, 100, 1)
    print(f"scaled from 2 to 1: {time.monotonic() - began:.1f} s")
    none_was_cut(streams)


def test_a_new_cluster(books: InPods, streams: list[Stream]) -> None:
    before = books.kubectl.names("raycluster")
    began = time.monotonic()
    books.edit({"rayCluster": {"managed": {"env": [{"name": "EDITION", "value": "2"}]}}})
    eventually("the Service selects the new one", lambda: books.said("TrafficSwitched"), timeout_s=400, every_s=1)
    print(f"a new cluster beside the old one, until the switch: {time.monotonic() - began:.1f} s")
    assert len(books.kubectl.names("raycluster") - before) == 1
    none_was_cut(streams)
    eventually("the old one is gone", lambda: not books.kubectl.names("raycluster") & before, timeout_s=200, every_s=1)


def answering(books: InPods) -> set[str]:
    """The replicas that the gateway sends new requests to."""
    try:
        page = get(f"{books.base.removesuffix('/v1')}/metrics")
    except httpx.HTTPError:
        return set()
    live = re.findall(r'^octavo_router_stream_state\{(?=[^}]*state="live")[^}]*replica="([^"]+)"[^}]*\} 1', page, re.M)
    return set(live)


def _evict(books: InPods, pod: str) -> None:
    namespace = books.kubectl.namespace
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
    books.kubectl.run("create", "--raw", path, "-f", "-", stdin=json.dumps(body))


def _new(books: InPods, old: str) -> bool:
    return bool(set(books.pods("gateway")) - {old})
