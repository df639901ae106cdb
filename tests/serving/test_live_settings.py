"""Live fields of engine and router: a change counts at once and replaces no replica.

Bounds, delays and targets are in ``test_scaling.py``; counts, ports, ``servedName`` and ``maxBodyBytes`` in
``test_ray_serve.py``.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from octavo_testing.serving.cluster import Cluster
from octavo_testing.serving.probes import ask, refusal, steps
from octavo_testing.waiting import eventually

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:.*metrics_interval_s"),
]

FEW = {"maxNumSeqs": 1}
Change = Callable[..., None]


@pytest.fixture
def change(cluster: Cluster) -> Iterator[Change]:
    """Change fields of one engine and one gateway; afterwards both must be the same processes as before."""
    cluster.deploy(replicas=1, engine=FEW)
    before = (cluster.replicas("Engine"), cluster.replicas("Gateway"))

    def apply(engine: dict[str, int] | None = None, router: dict[str, int | str] | None = None) -> None:
        cluster.apply(cluster.application(replicas=1, engine={**FEW, **(engine or {})}, router=router or {}))

    yield apply
    eventually("the configuration is applied", lambda: cluster.settled(1, 1))
    assert (cluster.replicas("Engine"), cluster.replicas("Gateway")) == before


def test_the_routing_policy_counts_at_once(cluster: Cluster, change: Change) -> None:
    assert ask(cluster).json()["octavo"]["policy"] == "prefix"
    change(router={"policy": "round_robin"})
    eventually("round robin", lambda: ask(cluster).json()["octavo"]["policy"] == "round_robin")


def test_the_length_of_chunks_counts_at_once(cluster: Cluster, change: Change) -> None:
    assert steps(cluster, 320) <= 3
    change(engine={"longPrefillTokenThreshold": 16})
    eventually("a prompt in chunks of 16", lambda: steps(cluster, 320) >= 20)


def test_the_request_timeout_counts_at_once(cluster: Cluster, change: Change) -> None:
    change(router={"requestTimeoutSeconds": 1})
    eventually("an end after a second", lambda: ask(cluster, max_tokens=200).status_code == 504)
    change(router={"requestTimeoutSeconds": 500})
    eventually("none after 500", lambda: ask(cluster, max_tokens=100).status_code == 200)


def test_the_gateways_limit_of_requests_counts_at_once(cluster: Cluster, change: Change) -> None:
    change(router={"maxInflightRequests": 1, "maxQueuedRequests": 0})
    with cluster.busy(cluster.new_prompt(4)):
        eventually("a full gateway", lambda: "the gateway is full" in refusal(cluster))
    eventually("an empty gateway", lambda: cluster.metric("octavo_router_inflight_requests") == 0)


def test_the_engines_limit_of_queued_requests_counts_at_once(cluster: Cluster, change: Change) -> None:
    change(engine={"maxNumQueuedReqs": 1})

    def answered() -> bool:
        return ask(cluster, prompt=cluster.new_prompt(4)).status_code == 200

    with ThreadPoolExecutor(1) as pool, cluster.busy(cluster.new_prompt(4)):
        waiting = pool.submit(eventually, "an answer", answered)
        eventually("a request that waits", lambda: cluster.metric("octavo_num_requests_waiting") == 1)
        eventually("a full engine", lambda: "max_num_queued_reqs" in refusal(cluster))
    assert waiting.result()


def test_a_shorter_drain_counts_for_replicas_that_run(cluster: Cluster) -> None:
    cluster.deploy(replicas=2)
    engines = set(cluster.replicas("Engine"))
    streams = [cluster.stream(3000, prompt=f"Endless {n}").begin() for n in range(4)]
    cluster.deploy(replicas=2, rollout={"drainSeconds": 0})
    assert set(cluster.replicas("Engine")) == engines
    cluster.deploy(replicas=0, rollout={"drainSeconds": 0})
    for stream in streams:
        stream.join()
        assert stream.error
        assert stream.text
