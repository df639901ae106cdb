from pathlib import Path

import yaml
from helm_python import Chart

import helm_docs

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "octavo"


def test_the_table_of_values_is_fresh() -> None:
    assert (CHART / "README.md").read_text() == helm_docs.readme(), "run python tools/helm_docs.py"


def test_every_value_is_described() -> None:
    assert helm_docs.undescribed((CHART / "values.yaml").read_text()) == []
    assert helm_docs.undescribed("# -- a\na: 1\nb:\n  c: 1\n") == ["b.c"]


def test_what_artifact_hub_reads_agrees_with_the_chart(chart: Chart) -> None:
    annotations = chart.metadata["annotations"]
    version = chart.metadata["appVersion"]
    images = {item["name"]: item["image"] for item in yaml.safe_load(annotations["artifacthub.io/images"])}
    for name, values in (("octavo-operator", chart.values["image"]), ("octavo-server", chart.values["serverImage"])):
        assert images[name] == f"{values['repository']}:{version}"
    crd = yaml.safe_load((ROOT / "manifests" / "base" / "crd" / "servingdeployments.yaml").read_text())
    (listed,) = yaml.safe_load(annotations["artifacthub.io/crds"])
    assert (listed["kind"], listed["name"]) == (crd["spec"]["names"]["kind"], crd["metadata"]["name"])
    assert listed["version"] in [version["name"] for version in crd["spec"]["versions"]]


def test_the_examples_of_the_chart_are_valid_resources(chart: Chart) -> None:
    from octavo_api.resource.deployment import ServingDeployment

    for example in yaml.safe_load(chart.metadata["annotations"]["artifacthub.io/crdsExamples"]):
        ServingDeployment.read(example)


def test_chart_and_package_have_one_version(chart: Chart) -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart.metadata["version"] == chart.metadata["appVersion"] == project["version"]
