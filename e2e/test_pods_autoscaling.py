"""Engines come and go with the load, by our policy; their pods follow through Ray's autoscaler."""

import time

import httpx
import pytest

from octavo_testing.node import pods
from octavo_testing.node.node import Node
from octavo_testing.node.pods import InPods
from octavo_testing.streams import open_streams
from octavo_testing.waiting import eventually

pytestmark = [pytest.mark.node, pytest.mark.full, pytest.mark.timeout(600)]
NAMESPACE = "autoscaling"
TARGET, MOST = 4, 3
TO_ZERO_S = 5


def test_engines_come_with_the_load_and_go_with_it(installed: Node) -> None:
    autoscaling = {
        "minReplicas": 1,
        "maxReplicas": MOST,
        "targetRequests": TARGET,
        "upscaleDelaySeconds": 2,
        "downscaleDelaySeconds": 5,
    }
    books = pods.serve(installed, NAMESPACE, pods.small(autoscaling=autoscaling))
    books.wait_ready(300)
    assert len(books.pods("engine")) == 1
    assert _engine_group(books)["maxReplicas"] == MOST + 1, "as many as it may want, and one that surges"
    began = time.monotonic()
    streams = open_streams(books.base, "books", 3 * TARGET, 7000)
    eventually("three engines serve", lambda: _serving(books) == MOST, timeout_s=240, every_s=1)
    print(f"{len(streams)} streams, until {MOST} engines serve: {time.monotonic() - began:.1f} s")
    assert len(books.pods("engine")) == MOST
    assert [stream.error for stream in streams] == [None] * len(streams)
    for stream in streams:
        stream.close()
    began = time.monotonic()
    eventually("one engine serves", lambda: _serving(books) == 1, timeout_s=120, every_s=1)
    print(f"streams closed, until one engine serves: {time.monotonic() - began:.1f} s")
    eventually("one pod is left", lambda: len(books.pods("engine")) == 1, timeout_s=200, every_s=1)
    print(f"streams closed, until one pod is left: {time.monotonic() - began:.1f} s")
    pods.end(books)


def test_requests_while_the_last_engine_goes_are_answered(installed: Node) -> None:
    """Asked just before, at and just after the moment: from 1 to 0 nothing is lost."""
    autoscaling = {"minReplicas": 0, "maxReplicas": 1, "downscaleToZeroDelaySeconds": TO_ZERO_S}
    books = pods.serve(installed, NAMESPACE, pods.small("zero", autoscaling=autoscaling))
    books.wait_ready(300)
    zeros = 0
    for pause_s in (0, 4, 5, 6, 7, 8, 9, 10, 12, 20):
        time.sleep(pause_s)
        zeros += _serving(books) == 0
        began = time.monotonic()
        body = {"model": "zero", "prompt": "Once", "max_tokens": 4}
        answer = httpx.post(f"{books.base}/completions", json=body, timeout=200, trust_env=False)
        assert answer.status_code == 200, f"after a pause of {pause_s} s: {answer.text}"
        print(f"answered {time.monotonic() - began:.1f} s after a pause of {pause_s} s")
    assert zeros >= 2, "it was at zero"
    pods.end(books)


def _serving(books: InPods) -> int:
    return int(books.status.get("readyReplicas", 0))


def _engine_group(books: InPods) -> dict[str, object]:
    (cluster,) = books.kubectl.list("raycluster")
    (group,) = [g for g in cluster["spec"]["workerGroupSpecs"] if g["groupName"] == "engine"]
    return dict(group)
