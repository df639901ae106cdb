"""Engines by load, on real Ray: up, down, to zero and back, and the requests during this."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from octavo_testing.serving.cluster import Cluster, Replica
from octavo_testing.waiting import eventually

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:.*metrics_interval_s"),
]

AT_ONCE = {"upscaleDelaySeconds": 0, "downscaleDelaySeconds": 0, "downscaleToZeroDelaySeconds": 0}


def scaling(least: int, most: int, **fields: Any) -> dict[str, Any]:
    return {"minReplicas": least, "maxReplicas": most, **AT_ONCE, **fields}


def ready(cluster: Cluster) -> int:
    return httpx.get(f"{cluster.direct}/ready", timeout=5, trust_env=False).status_code


def engines_in(lines: list[dict[str, Any]]) -> set[str]:
    return {line["replica"] for line in lines if line.get("deployment") == "Engine"}


def test_twenty_requests_at_zero_ask_for_one_engine_once(cluster: Cluster) -> None:
    cluster.deploy(engines=0, autoscaling=scaling(0, 3))  # ends what an earlier test left
    cluster.deploy(engines=0, autoscaling=scaling(0, 3, downscaleToZeroDelaySeconds=3600))
    assert ready(cluster) == 200
    before = len(cluster.log_lines())
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda n: cluster.complete(cluster.direct, prompt=f"Page {n}"), range(20)))
    assert [answer.status_code for answer in answers] == [200] * 20
    new = cluster.log_lines()[before:]
    assert len([line for line in new if line["message"] == "requests wait; requesting a first engine from Serve"]) == 1
    assert len(engines_in(new)) == 1
    eventually("one engine", lambda: cluster.settled(1, 1))


def test_requests_without_an_engine_are_refused_before_their_deadline(cluster: Cluster) -> None:
    application = cluster.application(
        autoscaling=scaling(0, 1), router={"requestTimeoutSeconds": 3, "maxQueuedRequests": 5}
    )
    [engine] = [d for d in application["deployments"] if d["name"] == "Engine"]
    engine["ray_actor_options"]["num_cpus"] = 64  # nowhere
    cluster.apply(application)
    eventually("no engine", lambda: not cluster.ready_engines() and not cluster.replicas("Engine"))
    began = threading.Barrier(9)

    def ask(number: int) -> tuple[int, str]:
        began.wait()
        answer = cluster.complete(cluster.direct, prompt=f"Line {number}")
        assert answer.headers["retry-after"] == "10"
        return answer.status_code, answer.json()["error"]["message"]

    with ThreadPoolExecutor(9) as pool:
        answers = list(pool.map(ask, range(9)))
    assert [code for code, _ in answers] == [503] * 9  # a deadline that passes is a 504
    messages = [message for _, message in answers]
    assert len([message for message in messages if "5 requests already wait for one" in message]) == 4
    assert len([message for message in messages if "started within the time limit" in message]) == 5
    assert ready(cluster) == 200


def test_engines_come_and_go_with_the_load_and_no_stream_is_cut(cluster: Cluster) -> None:
    cluster.deploy(engines=0, autoscaling=scaling(0, 2, targetRequests=4))
    with ThreadPoolExecutor(8) as pool:
        streams = list(pool.map(lambda n: cluster.stream(1500, prompt=f"Load {n}").begin(), range(8)))
    with cluster.busy(*([1000 * n + m for m in range(40)] for n in range(5))):
        eventually("two engines", lambda: cluster.settled(2, 1))
    for stream in streams:
        stream.join()
        assert (stream.error, stream.completion_tokens) == (None, 1500)
    eventually("no engine", lambda: not cluster.replicas("Engine"))
    # The last one may be draining still: it takes nothing more, and the next is asked for.
    assert cluster.complete(cluster.direct).status_code == 200


def test_targets_bounds_and_delays_count_at_once_and_replace_nothing(cluster: Cluster) -> None:
    never = {"upscaleDelaySeconds": 3600, "downscaleDelaySeconds": 3600}
    cluster.deploy(engines=1, autoscaling=scaling(1, 3))
    engines, gateways = set(cluster.replicas("Engine")), cluster.replicas("Gateway")

    def there() -> set[Replica]:
        """A replica that reads a configuration is not called running for a moment."""
        return set(cluster.replicas("Engine", "RUNNING", "UPDATING"))

    def stays(seconds: float, least: int = 1, most: int = 3, **fields: Any) -> None:
        """A load counts with the engine's next report, within 2 s; what was before it is forgotten 4 s later."""
        cluster.apply(cluster.application(autoscaling=scaling(least, most, **fields)))
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert there() <= engines, fields
            time.sleep(0.2)
        assert there() == engines

    def becomes(count: int, least: int = 1, most: int = 3, **fields: Any) -> None:
        nonlocal engines
        cluster.apply(cluster.application(autoscaling=scaling(least, most, **fields)))
        eventually(f"{count} engines with {fields}", lambda: cluster.settled(count, 1))
        assert there() <= engines or engines <= there()
        assert cluster.replicas("Gateway") == gateways
        engines = there()

    with cluster.busy(*([1000 * n + m for m in range(400)] for n in range(1, 5))):
        stays(3, targetRequests=32)
        stays(3, targetRequests=2, **never)
        becomes(2, targetRequests=2)
        becomes(3, targetRequests=32, targetCachePercent=1)
        stays(6, targetRequests=32, **never)
        becomes(1, targetRequests=32)
    becomes(3, least=3)
    becomes(1, most=1)
