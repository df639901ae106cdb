"""Replicas that a change replaces, and the requests during it."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from octavo_api.startup.model_source import EMBEDDED, locate
from octavo_testing.serving.cluster import Cluster, Replica
from octavo_testing.serving.probes import ask
from octavo_testing.waiting import eventually

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:.*metrics_interval_s"),
]


def test_an_engine_answers_until_its_successor_does(cluster: Cluster) -> None:
    cluster.deploy(replicas=1)
    [before] = cluster.replicas("Engine")
    stream = cluster.stream(400).begin()
    over = threading.Event()

    def probe() -> list[int]:
        codes = []
        while not over.wait(0.1):
            codes.append(ask(cluster).status_code)
        return codes

    with ThreadPoolExecutor(1) as pool:
        probing = pool.submit(probe)
        try:
            cluster.apply(cluster.application(replicas=1, engine={"maxNumSeqs": 4}))
            eventually("a new engine alone", lambda: cluster.settled(1, 1) and before not in cluster.replicas("Engine"))
        finally:
            over.set()
        assert set(probing.result()) == {200}
    stream.join()
    assert (stream.error, stream.completion_tokens) == (None, 400)


def test_without_surge_an_engine_stops_before_its_successor_starts(cluster: Cluster) -> None:
    cluster.deploy(replicas=1)
    [before] = cluster.replicas("Engine")
    rollout = {"drainSeconds": 4, "maxSurgePercent": 0}
    endless = cluster.stream(3000).begin()
    cluster.apply(cluster.application(replicas=1, engine={"maxNumSeqs": 5}, rollout=rollout))
    eventually("the old one stops", lambda: cluster.replicas("Engine", "STOPPING") == [before])
    eventually("no engine answers", lambda: ask(cluster).status_code == 503)
    cluster.deploy(replicas=1, engine={"maxNumSeqs": 5}, rollout=rollout)
    endless.join()
    assert [before] != cluster.replicas("Engine")


def test_another_model_replaces_engines_and_gateways(cluster: Cluster) -> None:
    cluster.deploy(replicas=1)
    before = {*cluster.replicas("Engine"), *cluster.replicas("Gateway")}
    cluster.apply(cluster.application(model={"uri": locate(EMBEDDED).path.as_uri()}))
    eventually("all are new", lambda: cluster.settled(1, 1) and not before & all_replicas(cluster))
    eventually("the new gateway knows the new engine", lambda: cluster.ready_engines() == 1)
    assert ask(cluster).status_code == 200


def all_replicas(cluster: Cluster) -> set[Replica]:
    return {*cluster.replicas("Engine"), *cluster.replicas("Gateway")}


def test_new_engines_with_a_real_model_have_the_new_settings(cluster: Cluster) -> None:
    fields = {"maxModelLen": 512, "dtype": "float32", "numThreads": 1, "seed": 7}

    def change(cache: str) -> tuple[str, str]:
        """Returns what the engine says of itself, and the first text that it draws."""
        seen = len(cluster.log_lines())
        cluster.deploy(import_path="octavo_serving.app:build", engine={**fields, "kvCacheMemoryBytes": cache})
        [said] = [line["message"] for line in cluster.log_lines()[seen:] if "KV cache" in line["message"]]
        return said, ask(cluster, temperature=1, max_tokens=16).json()["choices"][0]["text"]

    (small, first), gateways = change("128Mi"), cluster.replicas("Gateway")
    assert "in float32, 1 threads, instruction set " in small
    assert "KV cache 0.12 GiB" in small
    large, again = change("256Mi")
    assert "KV cache 0.25 GiB" in large
    assert first == again
    alone = ask(cluster, max_tokens=16).json()["choices"][0]["text"]
    with ThreadPoolExecutor(4) as pool:
        company = [pool.submit(cluster.complete, cluster.direct, prompt=f"Tale {n}", max_tokens=24) for n in range(3)]
        assert ask(cluster, max_tokens=16).json()["choices"][0]["text"] == alone
    assert all(answer.result().status_code == 200 for answer in company)
    assert cluster.replicas("Gateway") == gateways
