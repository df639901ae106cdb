"""What is generated is what the sources give."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from octavo_api import reference
from octavo_api.deployment import ServingDeployment, Spec
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
    assert path.read_text(encoding="utf-8") == reference.PAGES[name](), "run python -m octavo_api.reference"


def test_pages_are_written_where_one_says(tmp_path: Path) -> None:
    reference.main(tmp_path / "new")
    assert {path.name for path in (tmp_path / "new").iterdir()} == set(reference.PAGES)


def test_the_settings_page_has_every_setting() -> None:
    page = reference.settings_page()
    for section, cls in (("engine", EngineSettings), ("router", RouterSettings)):
        for field in cls.model_fields.values():
            (row,) = [line for line in page.splitlines() if line.startswith(f"| `spec.{section}.{field.alias}` |")]
            assert field.description in row
    for field in Spec.model_fields.values():
        assert f"spec.{field.alias}" in page


def test_the_errors_page_has_every_error() -> None:
    from octavo_api import errors

    page = reference.errors_page()
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.OctavoError):
            base = kind in (errors.OctavoError, errors.RequestError, errors.StartupError)
            assert (f"| `{name}` |" in page) != base


def test_the_schema_is_of_documents() -> None:
    schema = json.loads(reference.schema())
    engine = schema["$defs"]["EngineSettings"]["properties"]
    assert engine["blockSize"]["maximum"] == 256
    number, text = engine["kvCacheMemoryBytes"]["anyOf"][0]["anyOf"]
    assert number == {"type": "integer", "minimum": 65536}
    assert text["type"] == "string"
    assert schema["$defs"]["Router"]["properties"]["maxBodyBytes"]["anyOf"][0]["minimum"] == 1024
    assert schema["$defs"]["ResourceList"]["properties"]["cpu"]["anyOf"][0]["anyOf"][0]["exclusiveMinimum"] == 0
    assert not {"ge", "gt"} & set(keys(schema))


def keys(value: object) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(key for inner in value.values() for key in keys(inner))]
    return [key for inner in value for key in keys(inner)] if isinstance(value, list) else []


def test_the_schema_accepts_and_refuses_what_the_reader_does() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json.loads(reference.schema()))
    good = {"metadata": {"name": "a"}, "spec": {"model": {"uri": "embedded://smollm2"}, "engine": {"blockSize": 8}}}
    assert validator.is_valid(good)
    ServingDeployment.read(good)
    for engine in ({"blockSize": 0}, {"nothing": 1}, {"kvCacheMemoryBytes": "lots"}, {"kvCacheMemoryBytes": 1}):
        assert not validator.is_valid(good | {"spec": good["spec"] | {"engine": engine}}), engine
    assert validator.is_valid(good | {"spec": good["spec"] | {"engine": {"kvCacheMemoryBytes": "4Gi"}}})
