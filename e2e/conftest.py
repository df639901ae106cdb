"""One cluster for all tests, a namespace for each, and the programs that speak to it."""

# ruff: noqa: E402
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# This folder for octavo_e2e; the checkout for the fakes of the operator's tests, which are no package of their own.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from octavo_e2e import cluster as clusters
from octavo_e2e.cluster import Cluster
from octavo_e2e.kubectl import Kubectl
from octavo_e2e.operator import Installation
from octavo_e2e.tools import API_SERVER_TIER, why_not

ROOT = Path(__file__).parents[1]
CRD = ROOT / "manifests" / "base" / "crd" / "servingdeployments.yaml"

_NUMBERS = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "apiserver: starts a real kube-apiserver and KubeRay")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs the programs; where they cannot be had, the reason is said."""
    reason = why_not(*API_SERVER_TIER)
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        item.add_marker(pytest.mark.apiserver)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With KubeRay and a fake node, without anything of ours."""
    with clusters.running(tmp_path_factory.mktemp("kube")) as running:
        yield running


@pytest.fixture(scope="session")
def crd(cluster: Cluster) -> Cluster:
    """The cluster, with ServingDeployments in it."""
    kubectl = cluster.kubectl
    kubectl.run("apply", "--server-side", "-f", str(CRD))
    kubectl.run("wait", "--for=condition=Established", "crd/servingdeployments.serving.octavo.dev", "--timeout=30s")
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
