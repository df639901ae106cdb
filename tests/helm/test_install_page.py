"""Commands of docs/install.md name files, values and fields that exist."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart, parse_set_string

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "install.md").read_text()


def test_every_value_that_is_set_is_the_charts(chart: Chart) -> None:
    written = re.findall(r"(?:--set |`)((?:[a-z]\w*\.)*[a-z]\w*=(?:true|false|\{[^}]*\}|registry\.[\w./-]+))", PAGE)
    assert len(written) > 8
    for setting in written:
        chart.validate_schema(parse_set_string(setting))


def test_every_value_that_is_named_is_the_charts(chart: Chart) -> None:
    for path in re.findall(r"`((?:image|serverImage|crds|rbac|test|metrics|operator)\.\w+)`", PAGE):
        node: Any = chart.values
        for word in path.split("."):
            assert word in node, path
            node = node[word]


def test_every_file_that_is_named_exists() -> None:
    named = set(re.findall(r"\b((?:helm|manifests|docker|docs)/[\w./-]+\w)", PAGE))
    assert len(named) > 8
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_kustomization_of_the_page_builds(tmp_path: Path) -> None:
    import os
    import subprocess

    block = next(b for b in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "Kustomization" in b)
    document = yaml.safe_load(block)
    for field in ("resources", "components"):
        document[field] = [os.path.relpath(ROOT / path, tmp_path) for path in document[field]]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(document))
    kubectl = ROOT / ".venv" / "bin" / "kubectl"
    done = subprocess.run([str(kubectl), "kustomize", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "registry.example.com/octavo-operator" in done.stdout
    assert "namespace: models" in done.stdout


def test_the_requests_of_the_page_are_for_the_sample(render: Callable[..., Any]) -> None:
    name = yaml.safe_load((ROOT / "manifests" / "samples" / "01-smallest.yaml").read_text())["metadata"]["name"]
    assert f"sdep/{name}" in PAGE
    assert f'"model": "{name}"' in PAGE
    assert f"service/{name} 8000" in PAGE


@pytest.mark.parametrize("words", ["finalizer `serving.octavo.dev/operator`", "`serving.octavo.dev/force-delete:"])
def test_what_a_stuck_user_searches_for_is_named_as_in_the_code(words: str) -> None:
    from octavo_api.resource.deployment import FINALIZER
    from octavo_operator.model import names

    assert words in PAGE
    assert FINALIZER in words or names.FORCE_DELETE_ANNOTATION in words
