"""``make node`` and ``make node-down``, by themselves: other tests' node is not up yet when these run."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo_testing.kube.kubectl import Kubectl
from octavo_testing.node import namespaces, node, traces
from octavo_testing.node.__main__ import NAMESPACE
from octavo_testing.node.containerd import PAUSE
from octavo_testing.processes import Launcher, Process, alive
from octavo_testing.waiting import eventually

pytestmark = [pytest.mark.node, pytest.mark.full]
_COMMAND = [sys.executable, "-m", "octavo_testing.node"]


@pytest.fixture(autouse=True)
def _no_node() -> Iterator[None]:
    if node.HOME.exists():
        pytest.skip(f"a node is up, of {node.HOME}: `make node-down` first")
    yield
    node.stop()


def test_a_node_comes_up_once_and_goes_without_a_trace() -> None:
    before = traces.read()
    assert "The node was ready" in _command("up", "--bare")
    _start_a_pod()
    started = Launcher(node.HOME).pids.read()
    assert "The node runs already." in _command("up", "--bare")
    assert Launcher(node.HOME).pids.read() == started
    inside = _inside()
    assert len(inside) >= 12
    assert _command("down") == "The node is gone.\n"
    assert not [pid for pid in inside if alive(pid)]
    assert traces.read().beyond(before) == {}
    assert _command("down") == "No node runs.\n"


def test_what_a_killed_start_left_is_cleared_by_the_next() -> None:
    before = traces.read()
    starting = subprocess.Popen([*_COMMAND, "up", "--bare"], stdout=subprocess.DEVNULL)
    eventually("a kubelet", lambda: starting.poll() is not None or _started("kubelet"))
    assert starting.poll() is None
    starting.send_signal(signal.SIGKILL)
    starting.wait()
    inside = _inside()
    assert inside, "the start was killed too late, or took its processes with it"
    assert _command("down") == "The node is gone.\n"
    assert not [pid for pid in inside if alive(pid)]
    assert traces.read().beyond(before) == {}


def test_another_checkouts_node_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    _command("up", "--bare")
    started = Launcher(node.HOME).pids.read()
    monkeypatch.setattr(node, "CHECKOUT", Path("/elsewhere"))
    for what in (node.start, node.stop, node.find):
        with pytest.raises(node.Held, match="make node-down"):
            what()
    assert all(process.running for process in started)


def _start_a_pod() -> None:
    """Of the one image that is there."""
    kubectl = Kubectl(node.HOME / "admin.kubeconfig", NAMESPACE)
    secure = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    profile = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    container = {"name": "main", "image": PAUSE, "imagePullPolicy": "Never", "securityContext": secure}
    spec = {"containers": [container], "securityContext": profile}
    kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pause"}, "spec": spec})
    kubectl.run("wait", "--for=condition=Ready", "pod/pause", "--timeout=60s")


def _command(*arguments: str) -> str:
    done = subprocess.run([*_COMMAND, *arguments], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _started(name: str) -> list[Process]:
    return [process for process in Launcher(node.HOME).pids.read() if process.name == name]


def _inside() -> list[int]:
    (holder,) = _started("namespaces")
    held = namespaces.of(holder)
    return [] if held is None else held.processes()
