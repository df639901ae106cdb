"""Conditions of ``helm upgrade`` from the older chart in ``e2e/fixtures``; e2e runs it on a real API server."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart, lint

Document = dict[str, Any]

OLD = Path(__file__).resolve().parents[2] / "e2e" / "fixtures" / "octavo-0.0.9"


@pytest.fixture(scope="module")
def old() -> list[Document]:
    with Chart.load(OLD) as chart:
        texts = chart.render({}, name="octavo", namespace="octavo-system")
    return [d for path, text in texts.items() if path.endswith(".yaml") for d in yaml.safe_load_all(text) if d]


def schema(documents: list[Document], find: Callable[..., Document]) -> Document:
    (version,) = find(documents, "CustomResourceDefinition")["spec"]["versions"]
    return dict(version["schema"]["openAPIV3Schema"]["properties"]["spec"])


def fields(node: Document, path: str = "spec") -> Iterator[tuple[str, Document]]:
    for name, value in node.get("properties", {}).items():
        yield f"{path}.{name}", value
        yield from fields(value, f"{path}.{name}")


def test_the_older_chart_is_sound() -> None:
    report = lint(OLD, {}, strict=True, kube_version="v1.29.0")
    assert [message for message in report["messages"] if message["severity"] > 1] == []


def test_every_object_of_it_is_upgraded_in_place(
    old: list[Document], render: Callable[..., list[Document]], find: Callable[..., Document]
) -> None:
    """The same kinds and names, and the same selector, which is immutable in Kubernetes."""

    def keys(documents: list[Document]) -> set[tuple[str, str]]:
        return {(d["kind"], d["metadata"]["name"]) for d in documents}

    new = render()
    assert keys(old) <= keys(new)
    assert find(old, "Deployment")["spec"]["selector"] == find(new, "Deployment")["spec"]["selector"]


def test_fields_are_added_and_none_is_lost(
    old: list[Document], render: Callable[..., list[Document]], find: Callable[..., Document]
) -> None:
    before, after = dict(fields(schema(old, find))), dict(fields(schema(render(), find)))
    assert before.keys() < after.keys()
    assert {path: field["type"] for path, field in before.items()} == {path: after[path]["type"] for path in before}
    assert set(schema(render(), find).get("required", ())) <= set(schema(old, find)["required"])


def test_the_definition_and_its_resources_survive_an_uninstall(
    old: list[Document], render: Callable[..., list[Document]], find: Callable[..., Document]
) -> None:
    for documents in (old, render()):
        annotations = find(documents, "CustomResourceDefinition")["metadata"]["annotations"]
        assert annotations["helm.sh/resource-policy"] == "keep"
