"""One cluster for all tests, a namespace for each, and the programs that speak to it."""

import itertools
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo_testing.kube import cluster as clusters
from octavo_testing.kube.cluster import Cluster
from octavo_testing.kube.kubectl import Kubectl, Refused
from octavo_testing.kube.operator import Installation
from octavo_testing.kube.tools import API_SERVER_TIER, NODE_TIER, ToolsMissing, ensure, kuberay_crds, why_not
from octavo_testing.node import node as nodes
from octavo_testing.node import pods, requirements, traces
from octavo_testing.node.node import Node
from octavo_testing.processes import StartFailed
from octavo_testing.waiting import eventually

ROOT = Path(__file__).parents[1]
CRD = ROOT / "manifests" / "base" / "crd" / "servingdeployments.yaml"

CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap"}
_NUMBERS = itertools.count(1)
NODE_FAILURE = pytest.StashKey[str | None]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "apiserver: starts a real kube-apiserver and KubeRay")
    config.addinivalue_line("markers", "node: starts a real node, with pods")
    config.addinivalue_line("markers", "full: takes minutes; in `make e2e-full` only")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs the programs; where they cannot be had, the reason is said."""
    reason = why_not(*API_SERVER_TIER)
    node_reason = reason or requirements.reason_against()
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        item.add_marker(pytest.mark.apiserver)
        if why := node_reason if item.get_closest_marker("node") else reason:
            item.add_marker(pytest.mark.skip(reason=why))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds what is missing before the first test begins: it takes longer than any test may."""
    if session.config.option.collectonly:
        return
    wanted = [item for item in session.items if item.get_closest_marker("apiserver")]
    wanted = [item for item in wanted if not any(item.iter_markers("skip"))]
    if not wanted:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        try:
            ensure(*API_SERVER_TIER)
            kuberay_crds()
        except ToolsMissing as error:
            raise pytest.UsageError(str(error)) from error
        if any(item.get_closest_marker("node") for item in wanted):
            session.config.stash[NODE_FAILURE] = _prepare_node()


def _prepare_node() -> str | None:
    """Returns what failed: the tests that need no node run all the same."""
    try:
        requirements.install()
        ensure(*NODE_TIER)
        nodes.operator_image()
    except (ToolsMissing, StartFailed) as error:
        return str(error)
    return None


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With KubeRay and a fake node, without anything of ours.

    Owner references that block deletion need a right of their own here, as on OpenShift.
    """
    plugins = ["OwnerReferencesPermissionEnforcement"]
    with clusters.running(tmp_path_factory.mktemp("kube"), plugins=plugins) as running:
        yield running


@pytest.fixture(scope="session")
def crd(cluster: Cluster) -> Cluster:
    """The cluster, with ServingDeployments in it."""
    kubectl = cluster.kubectl
    kubectl.run("apply", "--server-side", "-f", str(CRD))
    kubectl.run("wait", "--for=condition=Established", "crd/servingdeployments.serving.octavo.dev", "--timeout=30s")
    # That plugin learns new kinds every 30 s, and refuses owners of other kinds.
    owner = {"apiVersion": "serving.octavo.dev/v1alpha1", "kind": "ServingDeployment", "name": "nobody", "uid": "none"}
    owned = {"name": "probe", "ownerReferences": [{**owner, "blockOwnerDeletion": True}]}
    kubectl.run("create", "serviceaccount", "probe")
    kubectl.run("create", "clusterrole", "probe", "--verb=create", "--resource=configmaps")
    kubectl.run("create", "clusterrolebinding", "probe", "--clusterrole=probe", "--serviceaccount=default:probe")
    probe = Kubectl(cluster.account("default", "probe"))
    eventually("owners of the new kind are known", lambda: _known(probe, owned), every_s=1)
    return cluster


def _known(probe: Kubectl, owned: dict[str, Any]) -> bool:
    try:
        probe.run("create", "--dry-run=server", "-f", "-", stdin=json.dumps({**CONFIG_MAP, "metadata": owned}))
    except Refused as refused:
        return "no RESTMapping" not in str(refused) and "cannot find RESTMapping" not in str(refused)
    return True


@pytest.fixture
def namespace(crd: Cluster, request: pytest.FixtureRequest) -> Iterator[Kubectl]:
    """A new namespace, and kubectl in it."""
    words = re.sub("[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())
    name = f"{words[:32].strip('-')}-{next(_NUMBERS)}"
    crd.kubectl.run("create", "namespace", name)
    yield crd.kubectl.within(name)
    crd.kubectl.delete("namespace", name, "--wait=false")


@pytest.fixture(scope="session")
def installation(crd: Cluster) -> Installation:
    """The chart, its operator paused: tests run that as a process of this machine, with the chart's rights."""
    return Installation.make(crd, "--set", "crds.install=false")


@pytest.fixture(scope="session")
def node(pytestconfig: pytest.Config) -> Iterator[Node]:
    """A node with KubeRay and the images of operator and server, without anything else of ours.

    One of this checkout that is up already (`make node`) is used and left; the images are loaded anew.
    """
    if failure := pytestconfig.stash[NODE_FAILURE]:
        pytest.fail(failure, pytrace=False)
    if (found := nodes.find()) is not None:
        nodes.load(found, nodes.archives())
        yield found
        return
    before = traces.read()
    try:
        started = nodes.start()
        nodes.load(started, nodes.archives())
        yield started
    finally:
        nodes.stop()
    assert traces.read().beyond(before) == {}, "the node left something, or took something with it"


@pytest.fixture(scope="module")
def installed(node: Node, request: pytest.FixtureRequest) -> Iterator[Node]:
    """The node with the operator, and with the test file's ``NAMESPACE``."""
    began = time.monotonic()
    pods.install(node)
    print(f"helm install to a ready operator: {time.monotonic() - began:.1f} s")
    node.prepare(request.module.NAMESPACE)
    yield node
    pods.uninstall(node, request.module.NAMESPACE)
