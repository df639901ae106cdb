"""Generated files are equal to the output of their generators."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from octavo_api.resource.deployment import Spec
from octavo_api.resource.status import Status
from octavo_api.schema import crd, reference
from octavo_api.schema.fields import Kind, walk
from octavo_api.settings import EngineSettings, RouterSettings

ROOT = Path(__file__).parents[2]
V1 = Path("octavo_api/v1")


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("protoc")
    environment = os.environ | {"PYTHON": sys.executable}
    subprocess.run([ROOT / "tools/protoc.sh", out], check=True, env=environment, capture_output=True)
    return out


def test_protobuf_code_is_fresh(generated: Path) -> None:
    made = {path.name for path in (generated / V1).iterdir()}
    kept = {path.name for path in (ROOT / "api" / V1).iterdir() if "_pb2" in path.name}
    assert made == kept
    for name in made:
        assert (generated / V1 / name).read_text() == (ROOT / "api" / V1 / name).read_text(), name


@pytest.mark.parametrize("name", reference.PAGES)
def test_reference_pages_are_fresh(name: str) -> None:
    path = ROOT / reference.FOLDER / name
    assert path.read_text(encoding="utf-8") == reference.PAGES[name](), "run python -m octavo_api.schema.reference"


@pytest.mark.parametrize("path", crd.FILES, ids=str)
def test_resource_definitions_are_fresh(path: Path) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == crd.FILES[path](), "run python -m octavo_api.schema.crd"


def test_definitions_are_written_where_one_says(tmp_path: Path) -> None:
    crd.main(tmp_path)
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*.yaml")} == set(crd.FILES)


def test_pages_are_written_where_one_says(tmp_path: Path) -> None:
    reference.main(tmp_path / "new")
    assert {path.name for path in (tmp_path / "new").iterdir()} == set(reference.PAGES)


def test_the_settings_page_has_every_setting() -> None:
    page = reference.settings_page()
    for section, cls in (("engine", EngineSettings), ("router", RouterSettings)):
        for name, field in cls.model_fields.items():
            (row,) = [line for line in page.splitlines() if line.startswith(f"| `{section}.{name}` |")]
            assert field.description in row
            assert f"`spec.{section}.{field.alias}`" in row


def test_the_resource_page_has_every_field_and_rule() -> None:
    page = reference.resource_page()
    for top, model in (("spec", Spec), ("status", Status)):
        for field in walk(model):
            if field.shape.kind is not Kind.SECTION:
                (row,) = [line for line in page.splitlines() if line.startswith(f"| `{top}.{field.spelled}` |")]
                assert field.description in row
    for rule in (*Spec.RULES, *Spec.TRANSITIONS):
        assert f"* `spec`: {rule.message}." in page


def test_the_errors_page_has_every_error() -> None:
    from octavo_api import errors

    page = reference.errors_page()
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.OctavoError):
            base = kind in (errors.OctavoError, errors.RequestError, errors.StartupError)
            assert (f"| `{name}` |" in page) != base


def test_the_schema_is_plain_json_schema() -> None:
    schema = json.loads(reference.schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert not [key for key in keys(schema) if key.startswith("x-kubernetes")]
    spec = schema["properties"]["spec"]["properties"]
    assert spec["engine"]["properties"]["blockSize"]["maximum"] == 256
    number, text = spec["engine"]["properties"]["kvCacheMemoryBytes"]["anyOf"]
    assert number == {"type": "integer", "minimum": 65536}
    assert text["type"] == "string"
    assert spec["resources"]["properties"]["limits"]["properties"]["cpu"]["anyOf"][0]["minimum"] == 1


def keys(value: object) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(key for inner in value.values() for key in keys(inner))]
    return [key for inner in value for key in keys(inner)] if isinstance(value, list) else []
