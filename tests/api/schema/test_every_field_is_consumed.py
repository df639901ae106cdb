"""Every field has an effect: a change of its value changes a plan of the operator or the objects that it reads.

Each field gets another value in a document of managed and of external mode. The test compares the operator's plans in
several situations with the plans for the document without the field.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from octavo_api.errors import ConfigurationError
from octavo_api.resource.deployment import ServingDeployment, Spec
from octavo_api.schema import crd
from octavo_api.schema.fields import Field, Kind, walk
from octavo_operator import observe
from octavo_operator.decide import managed
from octavo_operator.model import desired
from octavo_operator.model.defaults import Defaults
from octavo_operator.model.observed import Application, Cluster, Key, Observed, Reach, Resource, ServeState
from octavo_operator.plan import plan

KEY = Key("team", "chat")
NOW = 1_800_000_000.0
HOURS = 7_000.0
"""Seconds, more than the default deadline of progress and less than the other deadline in this test."""
DEFAULTS = Defaults(image="octavo:1", ray_version="2.60.0")
LEAVES = [field for field in walk(Spec) if field.shape.kind is not Kind.SECTION]
MODES: Mapping[str, Mapping[str, Any]] = {
    "managed": {"managed": {}},
    "external": {"external": {"dashboardURL": "http://ray:8265"}},
}
OTHER: Mapping[str, Any] = {
    "model.uri": "hf://o/other",
    "rayCluster.external.dashboardURL": "http://other:8265",
    "engine.maxNumSeqs": 77,
}


def other(field: Field) -> Any:
    """Return a value that is allowed and not the default."""
    match field.shape.kind:
        case _ if field.spelled in OTHER:
            return OTHER[field.spelled]
        case Kind.BOOLEAN:
            return not field.default
        case Kind.CHOICE:
            return next(choice for choice in field.shape.choices if choice != field.default)
        case Kind.INTEGER:
            limits = {
                name: getattr(item, name)
                for item in field.shape.metadata
                for name in ("ge", "le", "multiple_of")
                if hasattr(item, name)
            }
            low, high, step = limits["ge"], limits["le"], limits.get("multiple_of", 1)
            values = (value for value in (7777, 77, 7, high) if low <= value <= high and value % step == 0)
            return next(value for value in values if value != field.default)
        case Kind.BYTES:
            return "7Gi"
        case Kind.CPUS:
            return "7500m"
        case Kind.LIST:
            return [{"name": "other"}]
        case Kind.MAP | Kind.PASSTHROUGH:
            return {"other": "value"}
    return "other"


def put(spec: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Write a value and the fields that it requires."""
    for part in path[:-1]:
        spec = spec.setdefault(part, {})
        if part == "autoscaling":
            spec.setdefault("maxReplicas", 100)
        elif part.endswith("Ref"):
            spec.setdefault("name", "some")
    spec[path[-1]] = value


def take(spec: dict[str, Any], field: Field) -> None:
    """Remove a field, or give it another value if it is required."""
    *sections, last = field.path
    for part in sections:
        spec = spec[part]
    del spec[last]
    if field.info.is_required():
        needed = {"uri": "hf://o/n", "maxReplicas": 100, "dashboardURL": "http://ray:8265", "port": 7000}
        spec[last] = needed.get(last, "some")


def document(spec: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {"name": KEY.name, "namespace": KEY.namespace}
    return {"apiVersion": crd.API_VERSION, "kind": crd.KIND, "metadata": metadata, "spec": spec}


def follows(spec: Mapping[str, Any]) -> list[str]:
    """Return the references, plans and status that follow from a spec, as text to compare."""
    deployment = ServingDeployment.read(document(spec))
    resource = Resource(KEY, "uid", 1, "1", NOW, None, (), {}, document(spec), {})
    address = "http://ray:8265"
    running = desired.desired_application(KEY, deployment, DEFAULTS).config
    served = Application(str(running["name"]), "RUNNING", config=running)
    serve = {address: ServeState(address, Reach.OK, ray_version="2.60.0", applications={served.name: served})}
    old = Cluster("chat-old", "old", "0" * 16, NOW, False, True, "", "octavo:0", {"metadata": {}, "spec": {}})
    found = [observe.secret_references(deployment), observe.claim_references(deployment)]
    for observed in (Observed(), Observed(clusters=(old,)), Observed(serve=serve)):
        first = plan(resource, observed, NOW, DEFAULTS)
        later = plan(replace(resource, status=first.status), observed, NOW + HOURS, DEFAULTS)
        deleted = replace(resource, deleted_at=NOW, status=first.status, finalizers=("serving.octavo.dev/operator",))
        found += [first, later, plan(deleted, observed, NOW + 1, DEFAULTS)]
    return [repr(item) for item in found]


@pytest.fixture(autouse=True)
def one_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fix the hash of fields that need a new cluster. It contains every such field, also one that no code reads."""
    monkeypatch.setattr(managed, "spec_hash", lambda deployment: "f" * 16)


@pytest.mark.parametrize("field", LEAVES, ids=lambda field: field.spelled)
def test_every_field_makes_a_difference(field: Field) -> None:
    differs = {}
    for mode, cluster in MODES.items():
        without, written = ({"model": {"uri": "hf://o/n"}, "rayCluster": deepcopy(cluster)} for _ in range(2))
        put(without, field.path, other(field))
        take(without, field)  # the section is in both, so that the field itself makes the difference
        put(written, field.path, other(field))
        try:
            differs[mode] = follows(without) != follows(written)
        except ConfigurationError:
            continue  # not a field of this mode
    assert differs, "the field can be written in no mode"
    assert any(differs.values())


def test_a_field_that_nothing_reads_would_be_found() -> None:
    """Compare two documents with the same meaning, and two with another meaning."""
    spec = {"model": {"uri": "hf://o/n"}, "rayCluster": {"managed": {}}}
    assert follows(spec) == follows({**spec, "replicas": 1})
    assert follows(spec) != follows({**spec, "replicas": 2})
