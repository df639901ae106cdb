"""Effects of single values, and refused values."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart, HelmError, HelmValuesError, lint

Document = dict[str, Any]
Render = Callable[..., list[Document]]

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "octavo"


def test_lint_is_clean() -> None:
    report = lint(CHART, {}, strict=True, kube_version="v1.29.0")
    worse_than_advice = [message for message in report["messages"] if message["severity"] > 1]
    assert worse_than_advice == []
    assert report["errors"] == []


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"replicaz": 1}, "replicaz"),
        ({"replicas": 2}, "replicas"),
        ({"replicas": "1"}, "replicas"),
        ({"clusterWide": "yes"}, "clusterWide"),
        ({"image": {"repo": "x"}}, "repo"),
        ({"image": {"digest": "sha256:123"}}, "digest"),
        ({"operator": {"logLevel": "verbose"}}, "logLevel"),
        ({"watchNamespaces": "default"}, "watchNamespaces"),
        ({"watchNamespaces": ["Default"]}, "watchNamespaces"),
        ({"test": {"port": 70000}}, "port"),
        ({"test": {"apiKeySecretRef": {"nam": "x"}}}, "nam"),
        ({"podMonitor": {"interval": "often"}}, "interval"),
        ({"podLabels": {"a": 1}}, "podLabels"),
        ({"resources": {"limit": {}}}, "limit"),
    ],
)
def test_a_wrong_value_is_refused_by_name(chart: Chart, values: Document, says: str) -> None:
    with pytest.raises(HelmValuesError) as refused:
        chart.validate_schema(values)
    assert says in str(refused.value)


def test_the_schema_knows_every_value_and_lets_no_other_through(chart: Chart) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"

    def compare(values: Document, node: Document, path: str) -> None:
        properties = node.get("properties")
        if properties is None:
            return
        assert node["additionalProperties"] is False, path
        if path == "resources":  # Kubernetes' object, of which the default sets what it needs
            return
        assert values.keys() == properties.keys() - {"global"}, path
        for name, value in values.items():
            if isinstance(value, dict) and value:
                compare(value, properties[name], f"{path}.{name}".lstrip("."))

    compare(chart.values, schema, "")


def test_cluster_wide_and_a_list_of_namespaces_exclude_each_other(render: Render) -> None:
    with pytest.raises(HelmError, match="clusterWide watches all namespaces, so watchNamespaces must be empty"):
        render({"clusterWide": True, "watchNamespaces": ["a"]})


def test_a_service_monitor_asks_for_the_service(render: Render) -> None:
    with pytest.raises(HelmError, match=r"serviceMonitor\.enabled needs metrics\.service\.enabled"):
        render({"serviceMonitor": {"enabled": True}})


def operator(render: Render, find: Callable[..., Document], values: Document) -> Document:
    return dict(find(render(values), "Deployment")["spec"]["template"]["spec"]["containers"][0])


def test_the_tag_follows_the_chart_and_a_digest_wins(render: Render, find: Callable[..., Document]) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert operator(render, find, {})["image"].endswith(f"/octavo-operator:{version}")
    assert operator(render, find, {"image": {"tag": "x"}})["image"].endswith("/octavo-operator:x")
    digest = "sha256:" + "0" * 64
    both = operator(render, find, {"image": {"tag": "x", "digest": digest}})["image"]
    assert both.endswith(f"/octavo-operator@{digest}")


def test_the_operator_is_told_the_image_of_what_it_makes(render: Render, find: Callable[..., Document]) -> None:
    values = {"serverImage": {"repository": "registry.example.com/server", "tag": "1-cuda"}}
    assert "--image=registry.example.com/server:1-cuda" in operator(render, find, values)["args"]


def test_the_operator_is_told_which_namespaces_to_watch(render: Render, find: Callable[..., Document]) -> None:
    def scope(values: Document) -> list[str]:
        scopes = ("--namespace=", "--all-namespaces")
        return [word for word in operator(render, find, values)["args"] if word.startswith(scopes)]

    assert scope({}) == ["--namespace=$(POD_NAMESPACE)"]
    assert scope({"watchNamespaces": ["b", "a"]}) == ["--namespace=a", "--namespace=b"]
    assert scope({"clusterWide": True}) == ["--all-namespaces"]


def test_the_resource_definition_can_be_left_out_or_let_go(render: Render, find: Callable[..., Document]) -> None:
    kept = find(render(), "CustomResourceDefinition")
    assert kept["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "annotations" not in find(render({"crds": {"keep": False}}), "CustomResourceDefinition")["metadata"]
    assert all(d["kind"] != "CustomResourceDefinition" for d in render({"crds": {"install": False}}))


def test_the_resource_definition_is_kustomizes(render: Render, find: Callable[..., Document]) -> None:
    ours = find(render({"crds": {"keep": False}}), "CustomResourceDefinition")
    theirs = yaml.safe_load((ROOT / "manifests" / "base" / "crd" / "servingdeployments.yaml").read_text())
    assert ours == theirs


def test_extra_objects_are_templates(render: Render, find: Callable[..., Document]) -> None:
    extra = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-x"}, "data": {"a": "b"}}
    assert find(render({"extraObjects": [extra]}), "ConfigMap")["metadata"]["name"] == "octavo-x"


def test_notes_give_a_command_that_applies_a_valid_resource(texts: Callable[..., dict[str, str]]) -> None:
    from octavo_api.resource.deployment import ServingDeployment

    for values, namespace in (({}, "octavo-system"), ({"watchNamespaces": ["team-a"]}, "team-a")):
        notes = texts(values)["NOTES.txt"]
        assert f"kubectl apply --namespace {namespace} -f - <<'YAML'" in notes
        body = notes.partition("<<'YAML'\n")[2].partition("YAML")[0]
        deployment = ServingDeployment.read(yaml.safe_load(body))
        assert f"kubectl wait --namespace {namespace} --for=condition=Ready sdep/{deployment.metadata.name}" in notes
        assert "helm test octavo --namespace octavo-system" in notes


def test_notes_apply_the_smallest_sample(texts: Callable[..., dict[str, str]]) -> None:
    body = texts()["NOTES.txt"].partition("<<'YAML'\n")[2].partition("YAML")[0]
    sample = ROOT / "manifests" / "samples" / "01-smallest.yaml"
    assert yaml.safe_load(body) == yaml.safe_load(sample.read_text())


def test_notes_say_what_an_uninstall_keeps(texts: Callable[..., dict[str, str]]) -> None:
    assert "`helm uninstall` keeps" in texts()["NOTES.txt"]
    assert "`helm uninstall` keeps" not in texts({"crds": {"keep": False}})["NOTES.txt"]
