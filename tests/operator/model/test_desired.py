"""Ours and what Serve says it has are compared by meaning; whose an application is, is read from its arguments."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_api.resource.deployment import ServingDeployment
from octavo_operator.decide.application import config_hash, owner_of
from octavo_operator.model.defaults import Defaults
from octavo_operator.model.desired import counts, desired_application
from octavo_operator.model.observed import Application, Key

SPECS = [
    {},
    {"replicas": 0},
    {"autoscaling": {"minReplicas": 0, "maxReplicas": 3}},
    {"engine": {"blockSize": 32, "seed": 5}, "router": {"replicas": 2, "policy": "round_robin"}},
    {"resources": {"limits": {"cpu": "1500m", "memory": "3Gi"}}},
    {"rayCluster": {"external": {"dashboardURL": "http://h:8265"}}},
    {"endpoint": {"tlsSecretRef": {"name": "t"}, "apiKeySecretRef": {"name": "k"}}},
]


def wanted(spec):
    full = {"model": {"uri": "embedded://smollm2"}, **spec}
    deployment = ServingDeployment.read({"metadata": {"name": "qwen", "namespace": "shop"}, "spec": full})
    return desired_application(Key("shop", "qwen"), deployment, Defaults("i", "2.60.0")).config


@pytest.mark.parametrize("spec", SPECS)
def test_what_ray_gives_back_is_what_it_was_given(spec):
    """By Ray's own schema, as its REST interface writes it out."""
    schema = pytest.importorskip("ray.serve.schema")
    ours = wanted(spec)
    parsed = schema.ServeDeploySchema.model_validate({"applications": [ours]})
    back = json.loads(parsed.applications[0].model_dump_json(exclude_unset=True))
    assert config_hash(back) == config_hash(ours)


@pytest.mark.parametrize("spec", SPECS[1:])
def test_another_spec_is_another_configuration(spec):
    assert config_hash(wanted(spec)) != config_hash(wanted({}))


def test_nothing_less_than_the_meaning_is_compared():
    ours = wanted({})
    swapped = {**ours, "deployments": list(reversed(ours["deployments"]))}
    assert config_hash(swapped) == config_hash(ours)
    for change in ({"import_path": "x:y"}, {"route_prefix": None}, {"external_scaler_enabled": True}):
        assert config_hash({**ours, **change}) != config_hash(ours)
    first, second = ours["deployments"]
    for options in ({"max_ongoing_requests": 1}, {"user_config": None}, {"graceful_shutdown_timeout_s": 605.5}):
        assert config_hash({**ours, "deployments": [{**first, **options}, second]}) != config_hash(ours)
    assert config_hash({**ours, "deployments": [first]}) != config_hash(ours)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("xy", max_size=2), inner, max_size=2),
    max_leaves=6,
)


def as_serve_writes(value):
    """Numbers become floats; nothing else changes."""
    if isinstance(value, bool) or not isinstance(value, int | list | dict):
        return value
    if isinstance(value, int):
        return float(value)
    if isinstance(value, list):
        return [as_serve_writes(item) for item in value]
    return {name: as_serve_writes(item) for name, item in value.items()}


@given(st.dictionaries(st.text("pq", max_size=2), VALUES, max_size=3))
def test_floats_and_nulls_make_no_other_hash(config):
    assert config_hash(as_serve_writes(config)) == config_hash(config)
    assert config_hash({**config, "unset": None, "empty": {}}) == config_hash(config)


@pytest.mark.parametrize(
    ("config", "owner"),
    [
        (None, None),
        ({}, None),
        ({"args": {}}, None),
        ({"args": "x"}, None),
        ({"args": {"owner": 3}}, None),
        ({"args": {"owner": "a/b"}}, "a/b"),
    ],
)
def test_the_owner_is_read_or_there_is_none(config, owner):
    assert owner_of(Application("a", "RUNNING", config=config)) == owner


def test_counts_are_those_that_serve_is_asked_for():
    application = wanted({"autoscaling": {"minReplicas": 2, "maxReplicas": 5}, "router": {"replicas": 3}})
    engine, gateway = counts(application, "Engine"), counts(application, "Gateway")
    assert (engine.minimum, engine.maximum, engine.surge) == (2, 5, 2)
    assert (gateway.minimum, gateway.maximum, gateway.surge) == (3, 3, 3)
