"""A real node: what pods that Pod Security ``restricted`` admits can do on it."""

from collections.abc import Iterator
from typing import Any

import pytest

from octavo_testing.kube.kubectl import Kubectl, Refused
from octavo_testing.node.node import Node
from octavo_testing.node.pods import pod
from octavo_testing.web import get

pytestmark = pytest.mark.node
NAMESPACE = "pods"
_IMPORTS = "import os, torch, ray, octavo_serving; print('imported by', os.getuid(), torch.ones(2).sum().item())"
_SERVE = "exec python -m http.server 8000"


@pytest.fixture(scope="module")
def kubectl(node: Node) -> Iterator[Kubectl]:
    node.prepare(NAMESPACE)
    yield node.cluster.kubectl.within(NAMESPACE)
    node.forget(NAMESPACE)


@pytest.fixture(scope="module")
def web(kubectl: Kubectl) -> dict[str, Any]:
    """A Service with one pod behind it."""
    document = pod("web", f"echo it listens; {_SERVE}", labels={"app": "web"})
    document["spec"]["containers"][0]["readinessProbe"] = {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1}
    kubectl.apply(document)
    port = {"port": 80, "targetPort": 8000}
    kubectl.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}} | _spec([port]))
    kubectl.run("wait", "--for=condition=Ready", "pod/web", "--timeout=60s")
    found = kubectl.get("service", "web")
    assert found is not None
    return found


def test_the_node_is_ready(node: Node) -> None:
    (found,) = node.cluster.kubectl.list("node")
    conditions = {condition["type"]: condition["status"] for condition in found["status"]["conditions"]}
    assert conditions["Ready"] == "True"
    assert found["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://2.")


def test_a_restricted_pod_imports_the_environment_as_user_1000(kubectl: Kubectl) -> None:
    kubectl.apply(pod("imports", f'exec python -c "{_IMPORTS}"'))
    kubectl.run("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/imports", "--timeout=120s", timeout_s=150)
    assert kubectl.run("logs", "imports") == "imported by 1000 2.0\n"


def test_what_is_not_restricted_is_refused(kubectl: Kubectl) -> None:
    root = pod("root", "id")
    root["spec"]["volumes"] = [{"name": "programs", "hostPath": {"path": "/usr"}}]
    with pytest.raises(Refused, match="violates PodSecurity"):
        kubectl.apply(root)


@pytest.mark.usefixtures("web")
def test_logs_and_exec_work(kubectl: Kubectl) -> None:
    assert kubectl.run("logs", "web").startswith("it listens\n")
    assert kubectl.run("exec", "web", "--", "id", "-u") == "1000\n"
    with pytest.raises(Refused, match="Read-only file system"):
        kubectl.run("exec", "web", "--", "touch", "/usr/written")


@pytest.mark.usefixtures("web")
def test_a_service_is_reached_by_name_from_a_pod(kubectl: Kubectl) -> None:
    url = f"http://web.{NAMESPACE}.svc.cluster.local/"
    kubectl.apply(pod("asks", f"until wget -q -O- {url}; do sleep 1; done"))
    kubectl.run("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/asks", "--timeout=60s")
    assert "Directory listing" in kubectl.run("logs", "asks")


def test_a_service_is_reached_by_its_address_from_this_machine(web: dict[str, Any]) -> None:
    assert "Directory listing" in get(f"http://{web['spec']['clusterIP']}/")


def _spec(ports: list[dict[str, Any]]) -> dict[str, Any]:
    return {"spec": {"selector": {"app": "web"}, "ports": ports}}
