"""A document for a cluster on one machine: each field counts, is refused, or is said to be left out."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from octavo_api.errors import ConfigurationError
from octavo_api.resource.deployment import ServingDeployment, Spec
from octavo_api.resource.serve_config import application
from octavo_api.schema.fields import Field, Kind, walk
from octavo_cli.document import Flags, read_deployment
from octavo_cli.fit import fit
from octavo_cli.local_operator import placement

SAMPLES = Path(__file__).parents[2] / "manifests" / "samples"
LEAVES = [field for field in walk(Spec) if field.shape.kind is not Kind.SECTION]
ELSEWHERE = {
    # Orphan is refused by the types without rayCluster.external.
    "deletionPolicy",
    # When the operator's plan gives up; no part of what Serve is told.
    "rollout.progressDeadlineSeconds",
}


def deployment(spec: dict[str, Any]) -> ServingDeployment:
    return ServingDeployment.read({"metadata": {"name": "a"}, "spec": {"model": {"uri": "hf://o/n"}, **spec}})


def written(field: Field) -> dict[str, Any]:
    """A spec with another value than the default, and what must stand beside it."""
    limits = {
        name: getattr(item, name) for item in field.shape.metadata for name in ("ge", "le") if hasattr(item, name)
    }
    values: dict[Kind, Any] = {
        Kind.BOOLEAN: not field.default,
        Kind.CHOICE: next((choice for choice in field.shape.choices if choice != field.default), None),
        Kind.INTEGER: next(
            (n for n in (777, 77, 7, 1) if limits.get("ge", 0) <= n <= limits.get("le", n) and n != field.default), None
        ),
        Kind.BYTES: "7Gi",
        Kind.CPUS: "1500m",
        Kind.LIST: [{"name": "other"}],
        Kind.MAP: {"other": "value"},
        Kind.PASSTHROUGH: {"other": "value"},
    }
    value = {"model.uri": "hf://o/other", "rayCluster.external.dashboardURL": "http://ray:8265"}.get(
        field.spelled, values.get(field.shape.kind, "other")
    )
    spec: dict[str, Any] = {"model": {"uri": "hf://o/n"}}
    at = spec
    for part in field.path[:-1]:
        at = at.setdefault(part, {})
        if part == "autoscaling":
            at["maxReplicas"] = 100
        elif part == "external":
            at["dashboardURL"] = "http://ray:8265"
        elif part == "cache":
            at["claimName"] = "some"
        elif part.endswith("Ref"):
            at["name"] = "some"
    at[field.path[-1]] = value
    return spec


def beside(spec: dict[str, Any], field: Field) -> dict[str, Any]:
    """The same spec without the field, its section left in where something else is in it."""
    spec = deepcopy(spec)
    at = spec
    for part in field.path[:-1]:
        at = at[part]
    value = at.pop(field.path[-1])
    required = {"uri": "hf://o/n", "maxReplicas": 99, "port": 7000}
    if field.path[-1] in required and value != required[field.path[-1]]:
        at[field.path[-1]] = required[field.path[-1]]
    return spec


def served(spec: dict[str, Any]) -> dict[str, Any]:
    fitted, _ = fit(deployment(spec), has_keys=False)
    return application(fitted, placement(fitted, None, 2.0))


@pytest.mark.parametrize("field", [f for f in LEAVES if f.spelled not in ELSEWHERE], ids=lambda field: field.spelled)
def test_no_field_is_passed_over_in_silence(field: Field) -> None:
    spec = written(field)
    above = [f"spec.{'.'.join(field.path[:end])}: " for end in range(1, len(field.path) + 1)]
    said = told(spec)
    assert any(path in said for path in above) or served(spec) != served(beside(spec, field))


def told(spec: dict[str, Any]) -> str:
    try:
        return "\n".join(fit(deployment(spec), has_keys=False)[1])
    except ConfigurationError as error:
        return error.message


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {"rayCluster": {"external": {"dashboardURL": "http://ray:8265"}}},
            r"spec\.rayCluster\.external: .*its own Ray",
        ),
        ({"model": {"uri": "pvc://claim/folder"}}, r"spec\.model\.uri: .*octavo up -f FILE /PATH"),
        ({"suspend": True}, r"spec\.suspend: "),
        ({"endpoint": {"apiKeySecretRef": {"name": "keys"}}}, r"spec\.endpoint\.apiKeySecretRef: .*--api-key-file"),
    ],
)
def test_what_cannot_be_done_here_is_refused(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        fit(deployment(spec), has_keys=False)


def test_all_that_is_refused_is_said_at_once() -> None:
    spec = {"suspend": True, "model": {"uri": "pvc://claim/folder"}}
    with pytest.raises(ConfigurationError) as refused:
        fit(deployment(spec), has_keys=False)
    assert [line.partition(": ")[0] for line in refused.value.message.splitlines()] == [
        "spec.model.uri",
        "spec.suspend",
    ]


def test_keys_from_a_file_stand_for_those_of_a_secret() -> None:
    fitted, lines = fit(deployment({"endpoint": {"apiKeySecretRef": {"name": "keys"}}}), has_keys=True)
    assert fitted.spec.endpoint.api_key_secret_ref is None
    assert lines == ()


def test_what_is_left_out_is_gone_and_the_rest_stays() -> None:
    managed = {"managed": {"image": "example.org/octavo:1", "nodeSelector": {"disk": "ssd"}}}
    spec = {"rayCluster": managed, "router": {"replicas": 3, "policy": "round_robin"}, "replicas": 2}
    fitted, lines = fit(deployment(spec), has_keys=False)
    assert [line.split(": ")[1] for line in lines] == ["spec.rayCluster.managed", "spec.router.replicas"]
    assert fitted.spec.ray_cluster.managed is None
    assert fitted.spec.router.replicas == 1
    assert fitted.spec.router.policy == "round_robin"
    assert fitted.spec.replicas == 2


def test_the_samples_can_be_tried_or_say_why_not() -> None:
    refused = {}
    for path in sorted(SAMPLES.glob("*.yaml")):
        try:
            fit(read_deployment(Flags(file=path)), has_keys=False)
        except ConfigurationError as error:
            refused[path.name] = error.message.partition(": ")[0]
    assert refused == {
        "04-external-ray.yaml": "spec.rayCluster.external",
        "05-pvc-weights.yaml": "spec.model.uri",
        "09-api-keys-tls.yaml": "spec.endpoint.apiKeySecretRef",
        "13-suspended.yaml": "spec.suspend",
    }


def test_the_smallest_sample_counts_as_it_is() -> None:
    deployment = read_deployment(Flags(file=SAMPLES / "01-smallest.yaml"))
    assert fit(deployment, has_keys=False) == (deployment, ())
