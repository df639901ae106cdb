"""What a change of the document changes in Serve's configuration, and so what it rolls."""

import json
from typing import Any

import pytest

from octavo_api.deployment import ServingDeployment
from octavo_api.errors import ConfigurationError
from octavo_api.serve_config import (
    ENGINE,
    ENGINE_VARIABLE,
    GATEWAY,
    Bind,
    EngineUserConfig,
    Placement,
    application,
    engine_settings,
    read_environment,
)

PLACEMENT = Placement(
    bind=Bind.LOOPBACK, engine_cpus=1, gateway_cpus=0, replicas_on_node=2, secret_file="/run/secret", route_prefix="/m"
)


def config(**spec: Any) -> dict[str, Any]:
    document = {"metadata": {"name": "m"}, "spec": {"model": {"uri": "embedded://smollm2"}, **spec}}
    return application(ServingDeployment.read(document), PLACEMENT)


def deployment(of: dict[str, Any], name: str) -> dict[str, Any]:
    return next(d for d in of["deployments"] if d["name"] == name)


def rolls(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Serve's own rule: args and import path roll all, ray_actor_options their deployment."""
    if any(before[key] != after[key] for key in ("args", "import_path")):
        return {ENGINE, GATEWAY}
    names = (ENGINE, GATEWAY)
    return {n for n in names if deployment(before, n)["ray_actor_options"] != deployment(after, n)["ray_actor_options"]}


def test_an_unchanged_document_gives_the_same_configuration() -> None:
    assert json.dumps(config()) == json.dumps(config())


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"engine": {"maxNumSeqs": 4}}, {ENGINE}),
        ({"engine": {"blockSize": 32}}, {ENGINE}),
        ({"resources": {"limits": {"memory": "1Gi"}}}, {ENGINE}),
        ({"engine": {"longPrefillTokenThreshold": 64}}, set()),
        ({"engine": {"maxNumQueuedReqs": 4}}, set()),
        ({"router": {"policy": "round_robin"}}, set()),
        ({"router": {"replicas": 2}}, set()),
        ({"replicas": 3}, set()),
        ({"rollout": {"drainSeconds": 5}}, set()),
        ({"model": {"uri": "hf://o/n"}}, {ENGINE, GATEWAY}),
        ({"model": {"uri": "embedded://smollm2", "servedName": "x"}}, set()),
    ],
)
def test_a_change_rolls_no_more_than_it_must(spec: dict[str, Any], expected: set[str]) -> None:
    assert rolls(config(), config(**spec)) == expected
    assert config() != config(**spec)


def test_a_value_at_its_default_changes_nothing() -> None:
    assert config() == config(engine={"blockSize": 16}, router={"policy": "prefix"})


def test_the_engine_gets_the_settings_of_the_document_back() -> None:
    spec = {"engine": {"maxNumSeqs": 4, "longPrefillTokenThreshold": 64, "kvCacheMemoryBytes": "1Mi"}}
    engine = deployment(config(**spec), ENGINE)
    environment = read_environment(engine["ray_actor_options"]["runtime_env"]["env_vars"])
    settings = engine_settings(environment, EngineUserConfig.model_validate(engine["user_config"]))
    assert (settings.max_num_seqs, settings.long_prefill_token_threshold) == (4, 64)
    assert settings.kv_cache_memory_bytes == 2**20
    assert environment.replicas_on_node == 2


def test_a_replica_without_its_variable_says_which() -> None:
    with pytest.raises(ConfigurationError, match=ENGINE_VARIABLE):
        read_environment({})


@pytest.mark.parametrize(("replicas", "expected"), [(0, (0, 1)), (1, (1, 1)), (3, (3, 3))])
def test_a_fixed_count_is_the_autoscalers_too(replicas: int, expected: tuple[int, int]) -> None:
    autoscaling = deployment(config(replicas=replicas), ENGINE)["autoscaling_config"]
    assert (autoscaling["min_replicas"], autoscaling["max_replicas"]) == expected
    assert "num_replicas" not in deployment(config(replicas=replicas), ENGINE)


def test_no_secret_stands_in_the_configuration() -> None:
    assert json.dumps(config()).count("secret") == 2  # "secret_file": "/run/secret"


def test_environment_values_are_strings() -> None:
    env = deployment(config(), ENGINE)["ray_actor_options"]["runtime_env"]["env_vars"]
    assert all(isinstance(value, str) for value in env.values())
