"""KubeRay comes after Octavo: what is missing is named with the command that helps, and its coming heals."""

from collections.abc import Iterator

import pytest

from octavo_testing.kube import cluster as clusters
from octavo_testing.kube.cluster import Cluster
from octavo_testing.kube.documents import deployment
from octavo_testing.kube.operator import Installation
from octavo_testing.kube.serve_stub import running_stub
from octavo_testing.kube.serving import Serving

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with clusters.running(tmp_path_factory.mktemp("kube-late"), kuberay=False) as running:
        yield running


def test_without_kuberay_the_remedy_is_named_and_its_install_heals(bare: Cluster) -> None:
    installation = Installation.make(bare)
    kubectl = bare.kubectl.within("octavo")
    with running_stub(bare.folder) as stub, installation.operator(dashboard=stub.dashboard) as operator:
        kubectl.create(deployment())
        serving = Serving(kubectl, "books")
        serving.wait("RayClusterReady", "False", "KubeRayNotInstalled")
        assert "helm" in serving.condition("RayClusterReady")["message"]
        assert serving.said("KubeRayNotInstalled")
        before = operator.process.pid
        clusters.start_kuberay(bare)
        serving.wait_ready()
        assert operator.process.pid == before
        assert operator.process.running
