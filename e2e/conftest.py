"""One cluster for all tests, a namespace for each, and one node."""

import itertools
import re
import time
from collections.abc import Iterator

import pytest

from octavo_testing.kube import cluster as clusters
from octavo_testing.kube.cluster import Cluster
from octavo_testing.kube.hooks import *  # noqa: F403 - pytest finds the hooks here
from octavo_testing.kube.hooks import NODE_FAILURE
from octavo_testing.kube.kubectl import Kubectl
from octavo_testing.kube.operator import Installation, add_definition
from octavo_testing.node import pods, traces
from octavo_testing.node.node import Node, borrowed

_NUMBERS = itertools.count(1)


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
    add_definition(cluster)
    return cluster


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
    """A node with KubeRay and the images of operator and server, without anything else of ours."""
    if failure := pytestconfig.stash[NODE_FAILURE]:
        pytest.fail(failure, pytrace=False)
    with traces.unchanged(), borrowed() as node:
        yield node


@pytest.fixture(scope="module")
def installed(node: Node, request: pytest.FixtureRequest) -> Iterator[Node]:
    """The node with the operator, and with the test file's ``NAMESPACE``."""
    began = time.monotonic()
    pods.install(node)
    print(f"helm install to a ready operator: {time.monotonic() - began:.1f} s")
    node.prepare(request.module.NAMESPACE)
    yield node
    pods.uninstall(node, request.module.NAMESPACE)
