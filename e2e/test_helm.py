"""The chart with the real helm: installed, upgraded, taken away; what it refuses; what users' objects live through."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from octavo_testing.kube import cluster as clusters
from octavo_testing.kube.cluster import Cluster
from octavo_testing.kube.documents import deployment
from octavo_testing.kube.helm import CHART, Helm
from octavo_testing.kube.kubectl import Kubectl, Refused
from octavo_testing.waiting import eventually

OLD_CHART = Path(__file__).parent / "fixtures" / "octavo-0.0.9"
CRD = "servingdeployments.serving.octavo.dev"
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of this module's own, because a chart's definitions belong to one release."""
    with clusters.running(tmp_path_factory.mktemp("kube-helm")) as running:
        yield running


@pytest.fixture
def helm(bare: Cluster) -> Iterator[Helm]:
    """In a namespace that takes restricted pods only, with no trace of an earlier test."""
    helm = Helm(bare.admin, bare.folder)
    bare.kubectl.run("create", "namespace", helm.namespace)
    bare.kubectl.run("label", "namespace", helm.namespace, RESTRICTED)
    yield helm
    bare.kubectl.delete("crd", CRD)
    bare.kubectl.delete("namespace", helm.namespace, "--timeout=60s")
    for kind in ("clusterrole", "clusterrolebinding"):
        bare.kubectl.run("delete", kind, "--selector=app.kubernetes.io/name=octavo")


@pytest.fixture
def kubectl(bare: Cluster, helm: Helm) -> Kubectl:
    return bare.kubectl.within(helm.namespace)


def everything(kubectl: Kubectl) -> set[str]:
    kinds = "pods,services,deployments,replicasets,serviceaccounts,roles,rolebindings,configmaps,secrets"
    kinds += ",networkpolicies,poddisruptionbudgets"
    if kubectl.find("crd", CRD) is not None:
        kinds += f",{CRD}"
    found = set(kubectl.run("get", kinds, "-o", "name").split())
    return found - {"serviceaccount/default", "configmap/kube-root-ca.crt"}


def test_lint_finds_nothing(helm: Helm) -> None:
    for values in VALUES:
        said = helm.run("lint", "--strict", str(CHART), "--values", str(values))
        assert "0 chart(s) failed" in said


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("replicaz=2", "replicaz"),
        ("replicas=2", "replicas"),
        ("operator.logLevel=loud", "logLevel"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("clusterWide=yes", "clusterWide"),
    ],
)
def test_values_that_mean_nothing_are_refused(setting: str, words: str, helm: Helm) -> None:
    with pytest.raises(Refused) as refused:
        helm.install("octavo", "--set", setting, "--dry-run=client")
    assert words in str(refused.value)
    assert "schema" in str(refused.value)


def test_installs_into_a_restricted_namespace_and_its_pod_is_taken(helm: Helm, kubectl: Kubectl) -> None:
    notes = helm.install("octavo", "--wait", "--timeout=60s")
    assert "kubectl apply" in notes
    (pod,) = kubectl.list("pods", "app.kubernetes.io/component=operator")
    assert pod["status"]["phase"] == "Running"
    kubectl.run("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=10s")
    kubectl.create(deployment())
    assert kubectl.names("sdep") == {"books"}


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem.removesuffix("-values"))
def test_every_rendered_object_is_taken(values: Path, helm: Helm, kubectl: Kubectl) -> None:
    """All but those of kinds that other projects define, which this cluster does not have."""
    for namespace in yaml.safe_load(values.read_text() or "{}").get("watchNamespaces") or ():
        if namespace != helm.namespace:
            kubectl.run("create", "namespace", namespace)
    rendered = helm.template("--values", str(values))
    documents = [document for document in yaml.safe_load_all(rendered) if document]
    own = [document for document in documents if not document["apiVersion"].startswith("monitoring.coreos.com/")]
    assert own
    anywhere = kubectl.within("")
    anywhere.run("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(own))
    for pod in (document for document in own if document["kind"] in ("Pod", "Deployment")):
        template = pod if pod["kind"] == "Pod" else {"apiVersion": "v1", "kind": "Pod", **pod["spec"]["template"]}
        template = {**template, "metadata": {**template["metadata"], "name": "pod", "namespace": helm.namespace}}
        template["spec"] = {**template["spec"], "serviceAccountName": "default"}
        kubectl.run("create", "--dry-run=server", "-f", "-", stdin=json.dumps(template))
    for namespace in yaml.safe_load(values.read_text() or "{}").get("watchNamespaces") or ():
        if namespace != helm.namespace:
            kubectl.delete("namespace", namespace, "--wait=false")


def test_uninstall_takes_all_but_the_definition_and_the_users_objects(helm: Helm, kubectl: Kubectl) -> None:
    before = everything(kubectl)
    helm.install("octavo")
    kubectl.run("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=10s")
    kubectl.create(deployment())
    uid = kubectl.get("sdep", "books")["metadata"]["uid"]
    helm.uninstall("octavo")
    kept = {"servingdeployment.serving.octavo.dev/books"}
    eventually("the rest is gone", lambda: everything(kubectl) - before == kept)
    helm.install("octavo")
    assert kubectl.get("sdep", "books")["metadata"]["uid"] == uid


def test_uninstall_takes_the_definition_too_where_it_is_not_to_be_kept(helm: Helm, kubectl: Kubectl) -> None:
    helm.install("octavo", "--set", "crds.keep=false")
    helm.uninstall("octavo")
    eventually("the definition is gone", lambda: kubectl.find("crd", CRD) is None)


def test_an_upgrade_from_a_smaller_definition_keeps_the_users_objects(helm: Helm, kubectl: Kubectl) -> None:
    helm.install("octavo", chart=OLD_CHART)
    kubectl.run("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=10s")
    old = [
        deployment("managed", engine={"maxNumSeqs": 64}, replicas=2),
        deployment("external", rayCluster={"external": {"dashboardURL": "http://ray.example:8265"}}),
    ]
    kubectl.create(*old)
    before = {name: kubectl.get("sdep", name) for name in ("managed", "external")}
    assert "scale" not in json.dumps(kubectl.get("crd", CRD)["spec"]["versions"][0]["subresources"])

    helm.upgrade("octavo", "--wait", "--timeout=60s")

    for name, was in before.items():
        now = kubectl.get("sdep", name)
        assert now["metadata"]["uid"] == was["metadata"]["uid"]
        assert now["spec"] | was["spec"] == now["spec"], "a field was lost"
        assert now["spec"]["model"] == was["spec"]["model"]
    eventually("the new definition is served", lambda: scales(kubectl, "managed", 3), timeout_s=20)
    kubectl.patch("sdep", "external", {"spec": {"deletionPolicy": "Orphan"}})
    (pod,) = [p for p in kubectl.list("pods") if p["metadata"].get("deletionTimestamp") is None]
    assert pod["spec"]["containers"][0]["image"].endswith(f":{chart_version()}")


def test_an_upgrade_without_a_change_replaces_nothing(helm: Helm, kubectl: Kubectl) -> None:
    helm.install("octavo", "--wait", "--timeout=60s")
    before = {item["metadata"]["uid"]: item["metadata"]["generation"] for item in kubectl.list("deployments")}
    pods = kubectl.names("pods")
    helm.upgrade("octavo")
    assert {item["metadata"]["uid"]: item["metadata"]["generation"] for item in kubectl.list("deployments")} == before
    assert kubectl.names("pods") == pods


def test_a_viewer_sees_deployments_and_an_editor_changes_them(helm: Helm, kubectl: Kubectl) -> None:
    helm.install("octavo", "--set", "rbac.aggregateToDefaultRoles=true", "--set", "replicas=0")
    for role in ("view", "edit"):
        kubectl.run("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}er")
    eventually("the roles are aggregated", lambda: may(kubectl, "viewer", "get", "sdep"))
    eventually("both of them", lambda: may(kubectl, "editer", "patch", "sdep"))
    assert may(kubectl, "viewer", "get", "sdep/status")
    assert not may(kubectl, "viewer", "delete", "sdep")
    assert may(kubectl, "editer", "patch", "sdep/scale")


def scales(kubectl: Kubectl, name: str, replicas: int) -> bool:
    try:
        kubectl.run("scale", f"sdep/{name}", f"--replicas={replicas}")
    except Refused:
        return False
    return True


def may(kubectl: Kubectl, user: str, verb: str, what: str) -> bool:
    kind, _, subresource = what.partition("/")
    flags = [f"--subresource={subresource}"] if subresource else []
    try:
        return kubectl.run("auth", "can-i", verb, kind, *flags, f"--as={user}").strip() == "yes"
    except Refused:
        return False


def chart_version() -> str:
    return str(yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"])
