"""Failures of pods, and how clients and conditions show them."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from octavo_testing.node import pods
from octavo_testing.node.node import Node
from octavo_testing.node.pods import InPods
from octavo_testing.streams import none_was_cut, open_streams, prober
from octavo_testing.waiting import eventually

pytestmark = [pytest.mark.node, pytest.mark.full, pytest.mark.timeout(600)]
NAMESPACE = "failures"
SLOWEST_S = 30
"""Seconds between two looks of the operator at rest."""


@pytest.fixture(scope="module")
def books(installed: Node) -> Iterator[InPods]:
    serving = pods.serve(installed, NAMESPACE, pods.small(replicas=2))
    serving.wait_ready(300)
    yield serving
    serving.delete()
    pods.wait_until_nothing_is_left(serving, 180)


def test_an_engine_that_is_gone_at_once_costs_its_own_streams_alone(books: InPods) -> None:
    streams = open_streams(books.base, "books", 8, 3000)
    victim = sorted(books.pods("engine"))[0]
    began = time.monotonic()
    books.kubectl.run("delete", "pod", victim, "--force", "--grace-period=0")
    with ThreadPoolExecutor(8) as pool:
        later = list(pool.map(lambda n: _ask(books, f"Line {n}"), range(8)))
    assert [answer.status_code for answer in later] == [200] * 8
    eventually("some have their error", lambda: any(s.error for s in streams), timeout_s=60)
    told = time.monotonic() - began
    cut = [stream for stream in streams if stream.error]
    assert all("replica" in str(stream.error) for stream in cut)
    assert 0 < len(cut) < len(streams)
    assert books.says("Available", "True")
    eventually("another engine", lambda: len(books.pods("engine")) == 2, timeout_s=200, every_s=1)
    books.wait("Ready", "True", timeout_s=300)
    print(f"{len(cut)} of 8 streams told after {told:.1f} s, Ready again after {time.monotonic() - began:.1f} s")
    for stream in streams:
        stream.close()


def test_a_head_killed_without_redis_comes_back_and_available_shows_it(books: InPods) -> None:
    """Also how far the condition ever is from what a client sees, who asks ten times a second."""
    books.wait_ready(300)
    said: list[tuple[float, bool]] = []
    (head,) = books.pods("head")
    with prober(books.base, "books") as probes:
        time.sleep(5)
        began = time.time()
        books.kubectl.run("delete", "pod", head, "--force", "--grace-period=0")

        def ready_again() -> bool:
            said.append((time.time(), books.says("Available", "True")))
            back = said[-1][1] and not all(up for _, up in said) and probes and probes[-1].status == 200
            return bool(back) and books.says("Ready", "True")

        eventually("Ready again", ready_again, timeout_s=400, every_s=0.5)
        time.sleep(5)
    probes.sort(key=lambda probe: probe.at)
    missed = [probe.at for probe in probes if probe.status != 200]
    told = min(probe.told_at for probe in probes if probe.status != 200)
    down = [at for at, up in said if not up]
    assert missed
    assert down
    print(
        f"no answer from {missed[0] - began:.1f} (told at {told - began:.1f}) to {missed[-1] - began:.1f} s after the "
        f"kill, {len(missed)} of {len(probes)}, "
        f"Available=False from {down[0] - began:.1f} to {down[-1] - began:.1f} s"
    )
    assert down[0] - missed[0] < SLOWEST_S
    assert abs(down[-1] - missed[-1]) < SLOWEST_S


def test_a_head_that_is_killed_with_redis_cuts_no_stream(installed: Node) -> None:
    """Its workers wait for a head, after a deletion too: KubeRay lets them for ten minutes, this one for two."""
    pods.start_redis(installed.cluster.kubectl.within(NAMESPACE))
    patience = [{"name": "RAY_gcs_rpc_server_reconnect_timeout_s", "value": "120"}]
    kept = {"managed": {"gcsFaultTolerance": {"redisAddress": "redis:6379"}, "env": patience}}
    document = pods.small("kept", rayCluster=kept)
    serving = pods.serve(installed, NAMESPACE, document)
    serving.wait_ready(300)
    streams = open_streams(serving.base, "kept", 8, 7000)
    (head,) = serving.pods("head")
    before = serving.pods("gateway") | serving.pods("engine")
    began = time.monotonic()
    serving.kubectl.run("delete", "pod", head, "--force", "--grace-period=0")
    eventually("another head", lambda: set(serving.pods("head")) - {head}, timeout_s=120, every_s=1)
    time.sleep(5)
    serving.wait("Ready", "True", timeout_s=300)
    print(f"head killed with Redis, Ready again after {time.monotonic() - began:.1f} s")
    none_was_cut(streams)
    assert serving.pods("gateway") | serving.pods("engine") == before
    serving.delete()
    pods.wait_until_nothing_is_left(serving, 180)


def test_twenty_requests_at_zero_start_one_engine_and_are_all_answered(installed: Node) -> None:
    autoscaling = {"minReplicas": 0, "maxReplicas": 2, "downscaleToZeroDelaySeconds": 3600}
    serving = pods.serve(installed, NAMESPACE, pods.small("zero", autoscaling=autoscaling))
    serving.wait_ready(300)
    assert not serving.pods("engine")
    began = time.time()
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda n: _ask(serving, f"Line {n}"), range(20)))
    print(f"20 requests at zero answered after {time.time() - began:.1f} s")
    assert [answer.status_code for answer in answers] == [200] * 20
    (engine,) = serving.pods("engine")
    print(pods.stages(serving, engine, began))
    made = [e for e in serving.kubectl.list("events") if e["reason"] == "CreatedWorkerPod" and _of(e, serving)]
    assert len([e for e in made if "-engine-" in e["message"]]) == 1
    serving.delete()
    pods.wait_until_nothing_is_left(serving, 180)


def test_a_shorter_timeout_at_zero_ends_all_in_time(installed: Node) -> None:
    autoscaling = {"minReplicas": 0, "maxReplicas": 1}
    serving = pods.serve(
        installed, NAMESPACE, pods.small("brief", autoscaling=autoscaling, router={"requestTimeoutSeconds": 3})
    )
    serving.wait_ready(300)
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda n: _ask(serving, f"Line {n}"), range(20)))
    assert [answer.status_code for answer in answers] == [503] * 20
    longest = max(answer.elapsed.total_seconds() for answer in answers)
    print(f"20 requests at zero refused after {longest:.1f} s at the latest")
    assert longest < 6
    assert answers[0].headers["retry-after"]
    serving.delete()
    pods.wait_until_nothing_is_left(serving, 180)


def _of(event: dict[str, Any], serving: InPods) -> bool:
    return str(event["involvedObject"]["name"]).startswith(f"{serving.name}-")


def _ask(serving: InPods, prompt: str) -> httpx.Response:
    body = {"model": serving.name, "prompt": prompt, "max_tokens": 8, "ignore_eos": True}
    return httpx.post(f"{serving.base}/completions", json=body, timeout=300, trust_env=False, verify=False)
