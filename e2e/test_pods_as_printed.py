"""The commands of README, of the chart's NOTES and of docs/install.md, as they are printed."""

import json
import os
import re
import subprocess
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo_testing.kube.tools import ensure
from octavo_testing.node import pods
from octavo_testing.node.node import Node
from octavo_testing.node.pods import InPods
from octavo_testing.processes import free_ports
from octavo_testing.waiting import eventually

pytestmark = [pytest.mark.node, pytest.mark.full, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[1]


class Shell:
    """Commands of a user in a checkout, with helm and kubectl in the path."""

    def __init__(self, node: Node) -> None:
        self._environment = os.environ | {
            "KUBECONFIG": str(node.cluster.admin),
            "PATH": f"{ensure('helm')['helm'].parent}:{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
            "NO_PROXY": "*",
            "no_proxy": "*",
        }

    def run(self, script: str) -> str:
        command = ["bash", "-euo", "pipefail", "-c", script]
        done = subprocess.run(
            command, env=self._environment, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def shell(node: Node) -> Iterator[Shell]:
    node.prepare(pods.NAMESPACE)
    yield Shell(node)
    node.forget(pods.NAMESPACE)


@pytest.fixture(scope="module")
def notes(shell: Shell, node: Node) -> Iterator[str]:
    """Output of ``helm install``, after the README's three commands."""
    block = _blocks("README.md", "On a cluster with KubeRay")[0]
    commands = re.findall(r"^\$ (.*)$", block, re.M)
    assert [command.split()[0] for command in commands] == ["helm", "kubectl", "kubectl"]
    began = time.monotonic()
    printed = [shell.run(command) for command in commands]
    print(f"README, from helm install to Ready: {time.monotonic() - began:.1f} s")
    yield printed[0].partition("NOTES:\n")[2]
    serving = InPods(node.cluster.kubectl.within(pods.NAMESPACE), "smallest")
    pods.end(*([serving] if node.cluster.kubectl.find("crd", "servingdeployments.serving.octavo.dev") else []))


def test_the_notes(shell: Shell, notes: str) -> None:
    """They apply what the README has applied already, wait for it, and ask it for a token."""
    commands = re.findall(r"^  (.*)$", notes, re.M)
    said = shell.run("\n".join(commands))
    assert "unchanged" in said or "configured" in said
    assert "condition met" in said
    assert re.search(r"Phase:\s+Succeeded", said)


@pytest.mark.usefixtures("notes")
def test_a_forwarded_port_and_curl(shell: Shell) -> None:
    (block,) = [b for b in _blocks("docs/install.md", "## With Helm") if "port-forward" in b]
    forward, ask = block.split("\n", 1)
    # Something else may have the port on this machine.
    (port,) = free_ports(1)
    forward, ask = forward.replace(" 8000 &", f" {port}:8000 >/dev/null &"), ask.replace(":8000/", f":{port}/")
    wait = f"until (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null; do sleep 0.1; done"
    answer = json.loads(shell.run(f"{forward}\ntrap 'kill $!' EXIT\n{wait}\n{ask}"))
    assert answer["choices"][0]["message"]["content"]


@pytest.mark.usefixtures("notes")
def test_uninstalling(shell: Shell, node: Node) -> None:
    (block,) = [b for b in _blocks("docs/install.md", "## Uninstall") if "helm uninstall" in b]
    shell.run(block)
    kubectl = node.cluster.kubectl.within(pods.NAMESPACE)
    assert node.cluster.kubectl.find("crd", "servingdeployments.serving.octavo.dev") is None
    eventually("no pod is left", lambda: not kubectl.names("pod") - {"octavo-test-token"}, timeout_s=150, every_s=1)


def _blocks(page: str, after: str) -> list[str]:
    """The code blocks of a page, from a line on that has ``after`` in it."""
    text = (ROOT / page).read_text()
    return [textwrap.dedent(b) for b in re.findall(r"^```\w*\n(.*?)^```", text[text.index(after) :], re.M | re.S)]
