"""Run by ``test_haproxy.py`` in a process of its own: Serve reads these flags when it is imported."""

import os
import signal

import pytest

from octavo_testing.serving.cluster import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.timeout(150)]


def test_streams_through_haproxy_survive_a_scale_down_and_the_controller(cluster: Cluster) -> None:
    cluster.deploy(replicas=2)
    direct, proxied = cluster.complete(cluster.direct), cluster.complete(cluster.proxied)
    assert proxied.status_code == 200, proxied.text
    assert proxied.json()["choices"] == direct.json()["choices"]

    streams = [cluster.stream(250, cluster.proxied, prompt=f"Story {n}").begin() for n in range(6)]
    cluster.deploy(replicas=1)
    os.kill(cluster.actor_pid("ray::ServeController"), signal.SIGKILL)
    for stream in streams:
        stream.join()
        assert (stream.error, stream.completion_tokens) == (None, 250)
    assert cluster.complete(cluster.proxied).status_code == 200
