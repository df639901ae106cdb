"""Samples and documents that users copy are taken by a real API server as they are."""

from pathlib import Path

import pytest
import yaml

from octavo_testing.kube.cluster import Cluster

ROOT = Path(__file__).parents[1]
SAMPLES = sorted((ROOT / "manifests" / "samples").glob("*.yaml"))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_is_taken_as_it_is(sample: Path, crd: Cluster) -> None:
    documents = [document for document in yaml.safe_load_all(sample.read_text()) if document]
    assert documents
    crd.kubectl.run("apply", "--dry-run=server", "-f", str(sample))


def test_there_are_samples() -> None:
    assert len(SAMPLES) >= 8


@pytest.mark.parametrize("overlay", ["base", "overlays/cluster-wide", "overlays/namespaced", "overlays/dev"])
def test_kustomize_builds_what_the_api_server_takes(overlay: str, crd: Cluster) -> None:
    folder = ROOT / "manifests" / overlay
    rendered = crd.kubectl.run("kustomize", str(folder))
    namespaces = {d["metadata"].get("namespace") for d in yaml.safe_load_all(rendered) if d} - {None}
    for namespace in namespaces:
        if not crd.kubectl.find("namespace", namespace):
            crd.kubectl.run("create", "namespace", namespace)
    anywhere = crd.kubectl.within("")
    anywhere.run("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-", stdin=rendered)
