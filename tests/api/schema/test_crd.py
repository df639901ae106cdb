"""The resource definition, the editors' schema and the types accept the same documents."""

import json
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel

from octavo_api.errors import ConfigurationError
from octavo_api.resource.deployment import Metadata, ServingDeployment, Spec
from octavo_api.resource.status import Status
from octavo_api.rules import Rule, Ruled
from octavo_api.schema import crd, reference
from octavo_api.schema.fields import Field, Kind, walk
from octavo_api.settings import Change

CASES = yaml.safe_load((Path(__file__).parent / "resource_cases.yaml").read_text())
EDITOR = jsonschema.Draft202012Validator(json.loads(reference.schema()))
SCHEMA = crd.schema()
LEAVES = [field for field in walk(Spec) if field.shape.kind is not Kind.SECTION]


def document(spec: Any) -> dict[str, Any]:
    return {"apiVersion": crd.API_VERSION, "kind": crd.KIND, "metadata": {"name": "chat"}, "spec": spec}


def complaint(spec: Any) -> str:
    """Return the error of the types for a spec; empty if they accept it."""
    try:
        ServingDeployment.read(document(spec))
    except ConfigurationError as error:
        return error.message
    return ""


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


def checks(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """All CEL checks by their message."""
    return {check["message"]: check for _, node in nodes(schema) for check in node.get("x-kubernetes-validations", ())}


def at(field: Field) -> dict[str, Any]:
    node = SCHEMA["properties"]["spec"]
    for part in field.path:
        node = node["properties"][part]
    return node


# The form of the definition


def test_the_definition_is_small_enough() -> None:
    assert len(json.dumps(crd.definition())) < 200 * 1024
    assert all(len(crd.FILES[path]()) < 200 * 1024 for path in crd.FILES)


def test_the_schema_is_structural_and_bounded() -> None:
    for path, node in nodes(SCHEMA):
        assert "$ref" not in node, path
        assert not {"anyOf", "oneOf", "allOf", "not"} & set(node), path
        if path in (".apiVersion", ".kind", ".metadata"):
            continue  # the API server's own
        assert ("type" in node) != bool(node.get("x-kubernetes-int-or-string")), path
        if node.get("type") == "string" or "x-kubernetes-int-or-string" in node:
            assert "maxLength" in node or "enum" in node, path
        if node.get("type") == "integer":
            assert {"minimum", "format"} <= set(node), path
            assert "maximum" in node or node["format"] == "int64", path
        if node.get("type") == "array":
            assert "maxItems" in node, path
            assert "x-kubernetes-list-type" in node, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path
        if node.get("x-kubernetes-preserve-unknown-fields"):
            assert path.startswith(".spec.rayCluster.managed."), path
            assert "properties" not in node, path


def test_limits_are_what_the_api_server_can_keep() -> None:
    """The API server keeps limits as doubles. It would round up the limit of an int64 and reject every value."""
    for path, node in nodes(SCHEMA):
        for name in ("minimum", "maximum"):
            assert float(node.get(name, 0)) == node.get(name, 0), path
            assert abs(node.get(name, 0)) <= 2**53, path


def test_list_maps_have_their_keys_as_required_fields() -> None:
    for path, node in nodes(SCHEMA):
        for key in node.get("x-kubernetes-list-map-keys", ()):
            assert key in node["items"]["required"], path


def test_every_field_is_described() -> None:
    for path, node in nodes(SCHEMA):
        if not path.endswith("[]") and path not in (".apiVersion", ".kind", ".metadata"):
            assert node.get("description"), path
            assert node["description"].rstrip("`").endswith("."), path


def test_every_field_of_spec_says_its_default_and_what_a_change_does() -> None:
    for field in LEAVES:
        described = at(field)["description"]
        assert field.change in set(Change), field.spelled
        assert described.endswith(f"Change: {field.change}."), field.spelled
        assert ("Default: " in described) == (field.default is not ...), field.spelled


def test_only_what_is_never_improved_has_a_stored_default() -> None:
    found = {path.lstrip("."): node["default"] for path, node in nodes(SCHEMA) if "default" in node}
    assert set(found) == crd.STORED_DEFAULTS
    assert found["spec.replicas"] == 1
    types = {f"spec.{field.spelled}": field.default for field in walk(Spec)}
    assert all(types[path] == default for path, default in found.items() if "Ref" not in path and "auto" not in path)


def test_columns_and_scale_read_fields_that_exist() -> None:
    (version,) = crd.definition()["spec"]["versions"]
    paths = {path for path, _ in nodes(SCHEMA)} | {".metadata.creationTimestamp"}
    for column in version["additionalPrinterColumns"]:
        path = re.sub(r"\[\?\(.*\)\]", "[]", column["jsonPath"])
        assert path in paths, column
    assert set(version["subresources"]["scale"].values()) <= paths


# Rules: each once in CEL and once in Python


def test_sections_have_no_validator_beside_their_rules() -> None:
    sections = {Spec, ServingDeployment, *(field.shape.section for field in walk(Spec))} - {None}
    for section in sections:
        assert issubclass(section, BaseModel)
        found = section.__pydantic_decorators__
        assert set(found.model_validators) <= {"_rules", "_nulls", "_status"}, section
        assert not {**found.field_validators, **found.root_validators, **found.validators}, section
    for field in walk(Spec):
        assert not [item for item in field.shape.metadata if isinstance(item, AfterValidator)], field.spelled


def test_every_rule_is_in_the_definition_and_in_the_table() -> None:
    rules = [rule for field in walk(Spec) for rule in field.shape.metadata if isinstance(rule, Rule)]
    sections = [Spec, *(field.shape.section for field in walk(Spec))]
    rules += [rule for section in sections if section and issubclass(section, Ruled) for rule in section.RULES]
    found = checks(SCHEMA)
    assert all(found[rule.message]["rule"] == rule.cel for rule in rules)
    assert {rule.message for rule in rules} <= {case["message"] for case in CASES["refused"].values()}
    told = {case.get("served", case["message"]) for case in CASES["refused"].values()}
    told |= {case["message"] for case in CASES["updates"].values() if "message" in case}
    (name,) = SCHEMA["x-kubernetes-validations"]
    assert told == set(found) - {name["message"]}


def test_the_name_is_checked_as_the_types_do() -> None:
    (name,) = SCHEMA["x-kubernetes-validations"]
    (pattern,) = [item.pattern for item in Metadata.model_fields["name"].metadata if hasattr(item, "pattern")]
    assert name["rule"] == f"size(self.metadata.name) <= 40 && self.metadata.name.matches('{pattern}')"


def test_the_field_that_a_rule_blames_exists() -> None:
    paths = {path for path, _ in nodes(SCHEMA)}
    for path, node in nodes(SCHEMA):
        for check in node.get("x-kubernetes-validations", ()):
            assert path + check.get("fieldPath", "") in paths


@pytest.mark.parametrize("name", CASES["accepted"])
def test_what_is_accepted(name: str) -> None:
    assert complaint(CASES["accepted"][name]) == ""
    EDITOR.validate(document(CASES["accepted"][name]))


@pytest.mark.parametrize("name", CASES["refused"])
def test_what_is_refused(name: str) -> None:
    case = CASES["refused"][name]
    assert case["message"] in complaint(case["spec"])
    EDITOR.validate(document(case["spec"]))  # so it is the rule that refuses it


@pytest.mark.parametrize("name", CASES["updates"])
def test_both_ends_of_an_update_are_accepted(name: str) -> None:
    assert not complaint(CASES["updates"][name]["old"])
    assert not complaint(CASES["updates"][name]["new"])


# Values: schema and types accept the same

WRONG = [0, -1, 1.5, "", "x", True, [], {}, ["x"], [{}], {"x": 1}, {"x": "y"}, 2**70]
UNITS = ["", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti", "B", "KiB", "GiB", "E", "u", " Gi", "gi"]


def values(field: Field) -> list[Any]:
    """Values of a field on both sides of all its limits, and of other types."""
    node = at(field)
    low, high = node.get("minimum", 0), node.get("maximum", 2**40)
    match field.shape.kind:
        case Kind.INTEGER:
            right: list[Any] = [low, high, low - 1, high + 1]
        case Kind.BYTES | Kind.CPUS:
            numbers = ["0", "1", "1.5", "0.001", "64", str(low), str(low - 1), "9" * 6, "9" * 7, "9" * 30, "1.", ".5"]
            right = [low, low - 1, high, *(number + unit for number in numbers for unit in UNITS)]
        case Kind.CHOICE:
            right = [*node["enum"], node["enum"][0].swapcase()]
        case Kind.STRING:
            most = node["maxLength"]
            starts = [
                "",
                "hf://o/n",
                "s3://b",
                "http://h:1",
                "https://h/",
                "http://h/p",
                "ftp://h",
                "Upper",
                "a_b",
                "-a",
            ]
            right = [*starts, *(start + "a" * (most + over - len(start)) for start in starts for over in (0, 1))]
        case Kind.LIST:
            right = [[], [{"a": [1]}], [{}] * node["maxItems"], [{}] * (node["maxItems"] + 1), [1]]
        case Kind.MAP | Kind.PASSTHROUGH:
            most = node["maxProperties"]
            right = [{str(i): "v" for i in range(n)} for n in (0, most, most + 1)]
            right += [{"a": "v" * 4096}, {"a": "v" * 4097}, {"a": {"b": None}}]
        case _:
            right = [True, False]
    return right + WRONG


def put(spec: dict[str, Any], field: Field, value: Any) -> None:
    """Write a value and the fields that it requires."""
    for part in field.path[:-1]:
        spec = spec.setdefault(part, {})
        beside = {"autoscaling": "maxReplicas", "cache": "claimName", "external": "dashboardURL"}.get(part)
        beside = "name" if part.endswith("Ref") else beside
        if beside:
            spec.setdefault(beside, {"maxReplicas": 1024, "dashboardURL": "http://h:1"}.get(beside, "a"))
    spec[field.path[-1]] = value


def served(spec: dict[str, Any], message: str) -> bool:
    """Return True if the API server accepts a spec: its schema accepts it, and every rule holds.

    CEL itself runs on API servers only. Here a rule of a section counts as broken if ``message`` contains its message.
    Rules of quantities are computed again.
    """
    if not EDITOR.is_valid(document(spec)):
        return False
    told = checks(SCHEMA)
    return not any(said in message for said in told if "must be" not in said) and all(map(enough, quantities(spec)))


def quantities(spec: dict[str, Any]) -> Iterator[tuple[Any, str]]:
    for field in LEAVES:
        value: Any = spec
        for part in field.path:
            value = value.get(part) if isinstance(value, dict) else None
        if field.shape.kind in (Kind.BYTES, Kind.CPUS) and isinstance(value, str):
            yield value, at(field)["x-kubernetes-validations"][0]["message"]


def enough(quantity: tuple[str, str]) -> bool:
    text, rule = quantity
    number, unit = re.fullmatch(r"([0-9.]+)(.*)", text.replace("B", "")).groups()  # type: ignore[union-attr]
    powers = {"": 1, "m": Fraction(1, 1000)} | {unit: 1000 ** (i + 1) for i, unit in enumerate("kMGT")}
    powers |= {f"{unit}i": 1024 ** (i + 1) for i, unit in enumerate("KMGT")}
    limit = int(rule.split()[-1])
    return Fraction(number) * powers[unit] > limit - ("least" in rule) * Fraction(1, 10**12)


@pytest.mark.parametrize("field", LEAVES, ids=lambda field: field.spelled)
def test_types_accept_what_the_schema_accepts(field: Field) -> None:
    verdicts = set()
    for value in values(field):
        spec: dict[str, Any] = {"model": {"uri": "hf://o/n"}}
        put(spec, field, value)
        message = complaint(spec)
        assert (not message) == served(spec, message), (value, message)
        verdicts.add(not message)
    assert verdicts == {True, False}


@given(st.lists(st.sampled_from(LEAVES), max_size=6, unique_by=lambda field: field.path), st.data())
def test_types_accept_what_the_schema_accepts_of_whole_documents(fields: list[Field], data: st.DataObject) -> None:
    spec: dict[str, Any] = {
        "model": {"uri": data.draw(st.sampled_from(["hf://o/n", "pvc://c/p", "embedded://smollm2"]))}
    }
    for field in fields:
        put(spec, field, data.draw(st.sampled_from(values(field))))
    message = complaint(spec)
    assert (not message) == served(spec, message), message


def path_of(field: Field | None) -> str:
    return "spec" if field is None else ".".join(("spec", *field.path))


@pytest.mark.parametrize("field", [None, *(field for field in walk(Spec) if field.shape.section)], ids=path_of)
def test_fields_that_are_not_known_are_refused_by_both(field: Field | None) -> None:
    spec: dict[str, Any] = {"model": {"uri": "hf://o/n"}}
    if field is None:
        spec["nothing"] = 1
    else:
        put(spec, field, {"nothing": 1})
    assert "unknown field" in complaint(spec)
    assert not EDITOR.is_valid(document(spec))


# Status


def test_a_whole_status_is_what_the_schema_takes() -> None:
    status = {
        "observedGeneration": 7,
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Serving",
                "message": "",
                "observedGeneration": 7,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
        "urls": {"http": "http://chat:8000/v1", "grpc": "chat:9000", "dashboard": "http://ray:8265"},
        "rayCluster": {"name": "chat-1", "mode": "Managed", "rayVersion": "2.60.0", "activeHash": "ab", "image": "i"},
        "replicas": 2,
        "readyReplicas": 1,
        "updatedReplicas": 1,
        "selector": "serving.octavo.dev/deployment=chat",
        "configHash": "ab",
        "applications": [
            {
                "name": "chat",
                "status": "RUNNING",
                "message": "",
                "deployments": [{"name": "Engine", "status": "HEALTHY", "replicas": {"RUNNING": 1}}],
            }
        ],
        "lastError": {"reason": "Unreachable", "message": "no answer", "since": "2026-01-01T00:00:00Z"},
    }
    Status.model_validate(status)
    closed = jsonschema.Draft202012Validator(reference.plain(SCHEMA["properties"]["status"]))
    closed.validate(status)
    for wrong in ({"replicas": "2"}, {"phase": "x"}, {"conditions": [{"type": "Ready"}]}, {"urls": {"http": 1}}):
        assert not closed.is_valid(status | wrong)
        with pytest.raises(ValueError, match="validation error"):
            Status.model_validate(status | wrong)
