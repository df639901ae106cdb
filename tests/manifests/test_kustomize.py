"""kustomize and helm install the same."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import render_manifests
from octavo_api.resource.deployment import ServingDeployment

Document = dict[str, Any]
Build = Callable[[Path], list[Document]]

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "manifests"
CRD = "CustomResourceDefinition"


@pytest.fixture(scope="session")
def build() -> Build:
    """Runs ``kubectl kustomize``."""
    kubectl = ROOT / ".venv" / "bin" / "kubectl"
    program = str(kubectl) if kubectl.exists() else shutil.which("kubectl")
    assert program is not None, "kubectl is in the extra dev: make setup"

    def documents(folder: Path) -> list[Document]:
        done = subprocess.run([program, "kustomize", str(folder)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        return [document for document in yaml.load_all(done.stdout, loader) if document]

    return documents


@pytest.fixture
def compose(tmp_path: Path, build: Build) -> Callable[..., list[Document]]:
    """Builds an overlay or files with components, as a user's own kustomization would."""

    def documents(resources: list[Path], components: list[Path]) -> list[Document]:
        local = []
        for resource in resources:
            if resource.is_file():
                shutil.copy(resource, tmp_path)
                local.append(resource.name)
            else:
                local.append(os.path.relpath(resource, tmp_path))
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": local,
            "components": [os.path.relpath(component, tmp_path) for component in components],
        }
        (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        return build(tmp_path)

    return documents


def keyed(documents: list[Document]) -> dict[tuple[str, str], Document]:
    found = {(d["kind"], d["metadata"]["name"]): d for d in documents}
    assert len(found) == len(documents)
    return found


def test_no_file_made_of_the_chart_is_stale() -> None:
    for name in render_manifests.FILES:
        assert (MANIFESTS / name).read_text() == render_manifests.text(name), "run python tools/render_manifests.py"


def test_the_base_is_what_helm_installs_without_values(build: Build) -> None:
    helms = [render_manifests.without_helm(document) for document in render_manifests.rendered({})]
    assert keyed(build(MANIFESTS / "base")) == keyed(helms)


def test_the_cluster_wide_overlay_is_helms_cluster_wide(build: Build) -> None:
    helms = [render_manifests.without_helm(document) for document in render_manifests.rendered({"clusterWide": True})]
    documents = keyed(build(MANIFESTS / "overlays" / "cluster-wide"))
    assert documents.pop(("Namespace", "octavo-system"))
    assert documents == keyed(helms)


def test_the_namespaced_overlay_puts_everything_into_one_namespace(build: Build) -> None:
    documents = build(MANIFESTS / "overlays" / "namespaced")
    kinds = [document["kind"] for document in documents]
    assert sorted(kinds) == sorted([CRD, "Namespace", "ServiceAccount", "Role", "RoleBinding", "Deployment"])
    for document in documents:
        if document["kind"] not in (CRD, "Namespace"):
            assert document["metadata"]["namespace"] == "octavo"
        if document["kind"] == "RoleBinding":
            assert [subject["namespace"] for subject in document["subjects"]] == ["octavo"]


def test_the_dev_overlay_takes_ones_own_images(build: Build) -> None:
    deployment = next(d for d in build(MANIFESTS / "overlays" / "dev") if d["kind"] == "Deployment")
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "octavo-operator:dev"
    assert "--image=octavo-server:dev" in container["args"]
    assert "--log-level=debug" in container["args"]
    assert not [word for word in container["args"] if "ghcr.io" in word]


@pytest.mark.parametrize("overlay", ["namespaced", "cluster-wide"])
def test_components_go_into_the_overlays_namespace(compose: Callable[..., list[Document]], overlay: str) -> None:
    components = [MANIFESTS / "components" / name for name in ("monitoring", "network-policy")]
    plain = keyed(compose([MANIFESTS / "overlays" / overlay], []))
    documents = keyed(compose([MANIFESTS / "overlays" / overlay], components))
    added = {kind for kind, _ in documents.keys() - plain.keys()}
    assert added == {"Service", "ServiceMonitor", "PodMonitor", "PrometheusRule", "ConfigMap", "NetworkPolicy"}
    assert all(documents[key] == document for key, document in plain.items())


def test_tls_gives_a_deployment_a_certificate_of_its_name(compose: Callable[..., list[Document]]) -> None:
    sample = MANIFESTS / "samples" / "01-smallest.yaml"
    documents = keyed(compose([sample], [MANIFESTS / "components" / "tls"]))
    name = yaml.safe_load(sample.read_text())["metadata"]["name"]
    deployment = ServingDeployment.read(documents["ServingDeployment", name])
    certificate = documents["Certificate", "octavo-endpoint"]["spec"]
    assert deployment.spec.endpoint.tls_secret_ref is not None
    assert deployment.spec.endpoint.tls_secret_ref.name == certificate["secretName"]
    assert certificate["dnsNames"][0] == name
    assert certificate["issuerRef"]["name"] == documents["Issuer", "octavo-endpoint"]["metadata"]["name"]


def test_every_kustomization_builds_or_is_a_component() -> None:
    found = {path.parent.relative_to(MANIFESTS).as_posix() for path in MANIFESTS.rglob("kustomization.yaml")}
    overlays = {"base", "overlays/cluster-wide", "overlays/dev", "overlays/namespaced"}
    components = {"components/monitoring", "components/network-policy", "components/tls"}
    assert found == overlays | components, "and one of these tests builds it"


def test_no_yaml_under_manifests_is_left_out() -> None:
    """A file that no kustomization names is never installed."""
    named = set()
    for path in MANIFESTS.rglob("kustomization.yaml"):
        named |= {(path.parent / name).resolve() for name in yaml.safe_load(path.read_text())["resources"]}
    free = {"samples", "kind"}
    files = {p.resolve() for p in MANIFESTS.rglob("*.yaml") if p.name != "kustomization.yaml"}
    assert {p for p in files - named if p.relative_to(MANIFESTS).parts[0] not in free} == set()
