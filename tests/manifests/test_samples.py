"""Samples are short, say what they give and how, and are what the API server and the types take."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from octavo_api.resource.deployment import ServingDeployment, Spec
from octavo_api.schema import reference

ROOT = Path(__file__).parents[2]
SAMPLES = sorted((ROOT / "manifests/samples").glob("*.yaml"))
EDITOR = jsonschema.Draft202012Validator(json.loads(reference.schema()))


@pytest.fixture(params=SAMPLES, ids=lambda path: path.stem)
def sample(request: pytest.FixtureRequest) -> Path:
    return request.param


def document(sample: Path) -> dict[str, Any]:
    (read,) = yaml.safe_load_all(sample.read_text())
    return read


def test_samples_are_numbered_without_gaps() -> None:
    assert [int(path.stem[:2]) for path in SAMPLES] == list(range(1, len(SAMPLES) + 1))
    assert len(SAMPLES) >= 11


def test_schema_and_types_take_it(sample: Path) -> None:
    EDITOR.validate(document(sample))
    ServingDeployment.load(sample)


def test_it_is_short_and_says_what_it_gives_and_how(sample: Path) -> None:
    lines = sample.read_text().splitlines()
    assert len(lines) <= 40
    what, how, first = lines[:3]
    assert re.match(r"# [A-Z].*\.$", what)
    assert how.startswith("# kubectl ")
    assert f"-f {sample.relative_to(ROOT)}" in how
    assert first.startswith("apiVersion: ")


def test_its_resource_is_named_like_the_file(sample: Path) -> None:
    assert document(sample)["metadata"] == {"name": sample.stem[3:]}


def test_the_smallest_has_seven_lines_of_spec_or_fewer() -> None:
    spec = SAMPLES[0].read_text().split("\nspec:\n")[1]
    assert 1 <= len(spec.splitlines()) <= 7


def test_samples_show_every_section() -> None:
    shown = {name for path in SAMPLES for name in document(path)["spec"]}
    assert shown == {field.alias for field in Spec.model_fields.values()}
