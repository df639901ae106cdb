"""Rolling fields of the engine: a change counts in new engines behind the same gateways."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from octavo_testing.serving.cluster import Cluster, Replica
from octavo_testing.serving.probes import ask, cached, steps
from octavo_testing.waiting import eventually

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:.*metrics_interval_s"),
]

ROLLED = {
    "maxModelLen": 2048,
    "blockSize": 32,
    "maxNumSeqs": 1,
    "maxNumBatchedTokens": 64,
    "schedulingPolicy": "priority",
}


def roll(cluster: Cluster, engine: dict[str, Any]) -> None:
    """Change the engine's settings, and wait until a new engine alone serves."""
    old = set(cluster.replicas("Engine"))
    cluster.apply(cluster.application(replicas=1, engine=engine))
    eventually("a new engine", lambda: cluster.settled(1, 1) and not old & set(cluster.replicas("Engine")))
    eventually("the gateway knows it", lambda: cluster.ready_engines() == 1)
    eventually("and no other", lambda: len(cluster.series("octavo_engine_steps_total")) == 1)


@pytest.fixture(scope="module")
def gateways(cluster: Cluster) -> list[Replica]:
    """The gateways from before the engine got the settings ``ROLLED``."""
    cluster.deploy(replicas=1)
    before = cluster.replicas("Gateway")
    assert (cached(cluster, 50), steps(cluster, 200)) == (48, 1)
    roll(cluster, ROLLED)
    return before


def test_gateways_stay_when_engines_are_replaced(cluster: Cluster, gateways: list[Replica]) -> None:
    assert cluster.replicas("Gateway") == gateways


@pytest.mark.usefixtures("gateways")
def test_new_engines_take_prompts_of_the_new_length(cluster: Cluster) -> None:
    models = httpx.get(f"{cluster.direct}/v1/models", trust_env=False).json()
    assert models["data"][0]["max_model_len"] == 2048
    assert ask(cluster, prompt=cluster.new_prompt(2049)).status_code == 400


@pytest.mark.usefixtures("gateways")
def test_new_engines_have_blocks_and_steps_of_the_new_size(cluster: Cluster) -> None:
    assert (cached(cluster, 50), steps(cluster, 200)) == (32, 4)


@pytest.mark.usefixtures("gateways")
def test_new_engines_take_one_request_at_a_time_by_priority(cluster: Cluster) -> None:
    order: list[str] = []

    def finish(name: str, priority: int) -> None:
        assert ask(cluster, prompt=cluster.new_prompt(4), priority=priority).status_code == 200
        order.append(name)

    with ThreadPoolExecutor(3) as pool:
        pool.submit(cluster.complete, cluster.direct, max_tokens=600)
        eventually("one runs", lambda: cluster.metric("octavo_num_requests_running") == 1)
        for count, (name, priority) in enumerate((("later", 9), ("sooner", 1)), start=1):
            pool.submit(finish, name, priority)
            eventually(f"{count} wait", lambda count=count: cluster.metric("octavo_num_requests_waiting") == count)
        assert cluster.metric("octavo_num_requests_running") == 1
    assert order == ["sooner", "later"]


def test_new_engines_without_a_prefix_cache_find_nothing(cluster: Cluster, gateways: list[Replica]) -> None:
    roll(cluster, {**ROLLED, "enablePrefixCaching": False})
    assert cached(cluster, 50) == 0
    assert cluster.replicas("Gateway") == gateways
