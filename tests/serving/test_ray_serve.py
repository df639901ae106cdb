"""Real Ray Serve, real gateways, real scheduler and protocol; engines whose tokens are made up.

Each test deploys the configuration it needs, on top of whatever the test before has left.
"""

import json
import os
import signal
import time
from pathlib import Path

import grpc
import httpx
import pytest

from octavo_api.sampling import SamplingParams
from octavo_api.v1 import inference_pb2, inference_pb2_grpc
from octavo_testing.processes import free_ports
from octavo_testing.serving.cluster import Cluster
from octavo_testing.waiting import eventually

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


def libraries(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


def test_every_door_gives_the_same_tokens(cluster: Cluster) -> None:
    cluster.deploy(replicas=2)
    direct = cluster.complete(cluster.direct).json()
    proxied = cluster.complete(cluster.proxied).json()
    streamed = cluster.stream(8, cluster.proxied, prompt="Once").begin().join()
    sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True).to_proto()
    with grpc.insecure_channel(f"127.0.0.1:{cluster.grpc_port}") as channel:
        request = inference_pb2.GenerateRequest(text="Once", sampling=sampling)
        answer = inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=20)
    texts = {direct["choices"][0]["text"], proxied["choices"][0]["text"], streamed.text, answer.choices[0].text}
    assert len(texts) == 1
    assert texts != {""}
    assert direct["usage"]["completion_tokens"] == streamed.completion_tokens == 8


def test_neither_gateway_nor_controller_loads_the_engine(cluster: Cluster) -> None:
    cluster.deploy(replicas=1)
    gateways = [replica.pid for replica in cluster.replicas("Gateway")]
    for pid in (*gateways, cluster.actor_pid("ray::ServeController"), cluster.actor_pid("ray::ProxyActor")):
        assert "libtorch" not in libraries(pid)
        assert "llvmlite" not in libraries(pid)


def test_no_secret_reaches_serves_status_or_logs(cluster: Cluster) -> None:
    cluster.deploy(replicas=1)
    secret = cluster.engine_secret()
    assert secret not in json.dumps(cluster.details(), default=str)
    for log in cluster.folder.logs.rglob("*"):
        if log.is_file():
            assert secret.encode() not in log.read_bytes(), log
    assert secret not in cluster.log.read_text()


def test_scaling_down_cuts_no_stream(cluster: Cluster) -> None:
    cluster.deploy(replicas=2)
    streams = [cluster.stream(200, prompt=f"Story {n}").begin() for n in range(8)]
    cluster.deploy(replicas=1)
    for stream in streams:
        stream.join()
        assert stream.error is None
        assert stream.completion_tokens == 200


def test_live_settings_keep_every_process(cluster: Cluster) -> None:
    cluster.deploy(replicas=1)
    engines, gateways = cluster.replicas("Engine"), cluster.replicas("Gateway")
    cluster.deploy(
        replicas=1,
        engine={"longPrefillTokenThreshold": 64},
        router={"maxBodyBytes": 2048},
        model={"uri": "embedded://smollm2", "servedName": "tales"},
    )
    eventually("the new name", lambda: cluster.complete(cluster.direct, model="tales").status_code == 200)
    assert cluster.complete(cluster.direct).status_code == 404
    assert cluster.complete(cluster.direct, model="tales", prompt="x" * 4096).status_code == 413
    assert (cluster.replicas("Engine"), cluster.replicas("Gateway")) == (engines, gateways)


def test_live_settings_refuse_no_request_even_of_a_single_engine(cluster: Cluster) -> None:
    cluster.deploy(replicas=1)
    for threshold in (128, 256):
        cluster.apply(cluster.application(replicas=1, engine={"longPrefillTokenThreshold": threshold}))
        until = time.monotonic() + 2
        while time.monotonic() < until:
            assert cluster.complete(cluster.direct, max_tokens=1).status_code == 200


def test_rolling_settings_replace_engines_only_and_cut_no_stream(cluster: Cluster) -> None:
    cluster.deploy(replicas=2)
    engines, gateways = cluster.replicas("Engine"), cluster.replicas("Gateway")
    streams = [cluster.stream(600, prompt=f"Tale {n}").begin() for n in range(4)]
    cluster.deploy(replicas=2, engine={"maxNumSeqs": 16})
    eventually("new engines", lambda: not {e.id for e in engines} & {e.id for e in cluster.replicas("Engine")})
    assert cluster.replicas("Gateway") == gateways
    for stream in streams:
        stream.join()
        assert (stream.error, stream.completion_tokens) == (None, 600)
    assert cluster.complete(cluster.direct).status_code == 200


def test_a_killed_engine_is_replaced_and_nobody_hangs(cluster: Cluster) -> None:
    cluster.deploy(replicas=2)
    streams = [cluster.stream(150, prompt=f"Song {n}").begin() for n in range(8)]
    victim = cluster.replicas("Engine")[0]
    cluster.kill(victim)
    assert cluster.complete(cluster.direct).status_code == 200
    for stream in streams:
        stream.join()
        assert stream.error or stream.completion_tokens == 150
    assert any(stream.error is None for stream in streams)
    eventually("two engines again", lambda: cluster.noticed(victim) and cluster.settled(2, 1))
    eventually("both are known", lambda: cluster.ready_engines() == 2)


def test_a_killed_gateway_comes_back_on_its_ports(cluster: Cluster) -> None:
    cluster.deploy(replicas=1)
    victim = cluster.replicas("Gateway")[0]
    cluster.kill(victim)
    eventually(
        "the gateway is back",
        lambda: cluster.noticed(victim) and cluster.settled(1, 1) and cluster.ready_engines() == 1,
    )
    assert cluster.complete(cluster.direct).status_code == 200


def test_tokens_go_on_without_the_controller(cluster: Cluster) -> None:
    cluster.deploy(replicas=2)
    before = set(cluster.replicas("Engine") + cluster.replicas("Gateway"))
    stream = cluster.stream(300).begin()
    os.kill(cluster.actor_pid("ray::ServeController"), signal.SIGKILL)
    assert cluster.complete(cluster.direct).status_code == 200
    assert stream.join().error is None
    assert stream.completion_tokens == 300
    eventually("Serve has its controller again", lambda: cluster.settled(2, 1))
    assert set(cluster.replicas("Engine") + cluster.replicas("Gateway")) == before


def test_an_engine_that_hangs_is_replaced(cluster: Cluster) -> None:
    cluster.deploy(replicas=1)
    before = cluster.replicas("Engine")[0]
    stuck = cluster.stream(200).begin()
    cluster.hang.touch()
    try:
        eventually("the engine is replaced", lambda: before.id not in {e.id for e in cluster.replicas("Engine")})
    finally:
        cluster.hang.unlink()
    eventually("its successor serves", lambda: cluster.settled(1, 1) and cluster.ready_engines() == 1)
    assert cluster.complete(cluster.direct).status_code == 200
    stuck.join()


def test_of_two_gateways_one_listens_and_the_other_takes_over(cluster: Cluster) -> None:
    cluster.deploy(replicas=1, router={"replicas": 2})
    gateways = cluster.replicas("Gateway")
    [holder] = [g for g in gateways if listens(g.pid, cluster.http_port)]
    [standby] = [g for g in gateways if g is not holder]
    for _ in range(8):
        assert cluster.complete(cluster.proxied).status_code == 200
    cluster.kill(holder)
    eventually("the standby listens", lambda: listens(standby.pid, cluster.http_port))
    eventually("it knows the engine", lambda: cluster.ready_engines() == 1)
    assert cluster.complete(cluster.direct).status_code == 200
    eventually("two gateways again", lambda: cluster.noticed(holder) and cluster.settled(1, 2))


def test_a_gateway_drains_while_its_successor_has_the_ports(cluster: Cluster) -> None:
    cluster.deploy(replicas=1)
    before = cluster.replicas("Gateway")[0]
    streams = [cluster.stream(400).begin(), cluster.stream(400, cluster.proxied).begin()]
    cluster.deploy(replicas=1, endpoint=cluster.endpoint(free_ports(1)[0]))
    assert cluster.replicas("Gateway")[0].id != before.id
    assert cluster.complete(cluster.direct).status_code == 200
    for stream in streams:
        stream.join()
        assert (stream.error, stream.completion_tokens) == (None, 400)


def listens(pid: int, port: int) -> bool:
    table = Path("/proc/net/tcp").read_text().splitlines()[1:]
    inodes = {f"socket:[{f[9]}]" for f in map(str.split, table) if f[3] == "0A" and int(f[1].split(":")[1], 16) == port}
    descriptors = Path(f"/proc/{pid}/fd").glob("*")
    return any(os.readlink(descriptor) in inodes for descriptor in descriptors if os.path.lexists(descriptor))


def test_no_engine_is_an_error_at_once_and_a_count_of_zero_stays(cluster: Cluster) -> None:
    cluster.deploy(replicas=0)
    assert cluster.complete(cluster.direct).status_code == 503
    assert httpx.get(f"{cluster.direct}/ready", trust_env=False).status_code == 503
    cluster.deploy(replicas=1)
    assert cluster.complete(cluster.direct).status_code == 200
