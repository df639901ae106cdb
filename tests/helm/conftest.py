import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "octavo"
RELEASE, NAMESPACE = "octavo", "octavo-system"

Document = dict[str, Any]
Render = Callable[..., list[Document]]


@pytest.fixture(scope="session")
def chart() -> Iterator[Chart]:
    with Chart.load(CHART) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def texts(chart: Chart) -> Callable[..., dict[str, str]]:
    """Renders with values, checked by the schema as Helm does; file names are from the chart's folder on."""

    def render(values: Document | None = None, *, release: str = RELEASE, namespace: str = NAMESPACE) -> dict[str, str]:
        chart.validate_schema(values or {})
        found = chart.render(values or {}, name=release, namespace=namespace)
        return {path.removeprefix("octavo/templates/"): text for path, text in found.items()}

    return render


@functools.cache
def parse(text: str) -> list[Document]:
    """Parse each text once: most files are the same for all values."""
    return [document for document in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if document]


@pytest.fixture(scope="session")
def render(texts: Callable[..., dict[str, str]]) -> Render:
    """Return all documents of a release; tests do not change them."""

    def documents(values: Document | None = None, **where: str) -> list[Document]:
        found = texts(values, **where)
        return [document for path, text in found.items() if path.endswith(".yaml") for document in parse(text)]

    return documents


def ci_files() -> list[Path]:
    return sorted((CHART / "ci").glob("*-values.yaml"))


@pytest.fixture(scope="session", params=ci_files(), ids=lambda path: path.stem.removesuffix("-values"))
def values(request: pytest.FixtureRequest) -> Document:
    """One by one the sets of values in ``ci/``."""
    return dict(yaml.safe_load(request.param.read_text()) or {})


@pytest.fixture(scope="session")
def documents(values: Document, render: Render) -> list[Document]:
    return render(values)


@pytest.fixture(scope="session")
def find() -> Callable[..., Document]:
    """Returns the only document of a kind, or the one whose name matches too."""

    def one(documents: list[Document], kind: str, name: str = "") -> Document:
        found = [d for d in documents if d["kind"] == kind and re.search(name, d["metadata"]["name"])]
        assert len(found) == 1, f"{len(found)} of {kind} {name}"
        return found[0]

    return one
