"""Changes of the document, and the parts of Serve's configuration that they change."""

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from octavo_api.errors import ConfigurationError
from octavo_api.resource.deployment import Autoscaling, ServingDeployment
from octavo_api.resource.serve_config import (
    ENGINE,
    ENGINE_VARIABLE,
    GATEWAY,
    ApplicationArgs,
    Bind,
    EngineUserConfig,
    Placement,
    application,
    engine_settings,
    read_environment,
)
from octavo_api.settings import Change, EngineSettings, RouterSettings

PLACEMENT = Placement(
    name="books.m",
    owner="books/m",
    bind=Bind.LOOPBACK,
    http_port=0,
    grpc_port=0,
    engine_cpus=1,
    gateway_cpus=0,
    replicas_on_node=2,
    route_prefix="/books/m",
)


def config(placement: Placement = PLACEMENT, **spec: Any) -> dict[str, Any]:
    document = {"metadata": {"name": "m"}, "spec": {"model": {"uri": "embedded://smollm2"}, **spec}}
    return application(ServingDeployment.read(document), placement)


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
        ({"autoscaling": {"maxReplicas": 3}}, set()),
        ({"autoscaling": {"minReplicas": 0, "maxReplicas": 3, "targetRequests": 4}}, set()),
        ({"model": {"uri": "hf://o/n"}}, {ENGINE, GATEWAY}),
        ({"model": {"uri": "embedded://smollm2", "servedName": "x"}}, set()),
    ],
)
def test_a_change_rolls_no_more_than_it_must(spec: dict[str, Any], expected: set[str]) -> None:
    assert rolls(config(), config(**spec)) == expected
    assert config() != config(**spec)


OTHER_VALUES: dict[type[BaseModel], dict[str, Any]] = {
    EngineSettings: {
        "dtype": "float32",
        "max_model_len": 256,
        "block_size": 32,
        "kv_cache_memory_bytes": "64Mi",
        "max_num_batched_tokens": 256,
        "max_num_seqs": 4,
        "long_prefill_token_threshold": 64,
        "enable_prefix_caching": False,
        "max_num_queued_reqs": 4,
        "scheduling_policy": "priority",
        "seed": 7,
        "num_threads": 1,
    },
    RouterSettings: {
        "policy": "round_robin",
        "max_inflight_requests": 4,
        "max_queued_requests": 4,
        "max_body_bytes": 4096,
        "request_timeout_seconds": 4,
    },
    Autoscaling: {
        "min_replicas": 0,
        "max_replicas": 9,
        "target_requests": 4,
        "target_cache_percent": 4,
        "upscale_delay_seconds": 4,
        "downscale_delay_seconds": 4,
        "downscale_to_zero_delay_seconds": 4,
    },
}
SECTIONS = {EngineSettings: "engine", RouterSettings: "router", Autoscaling: "autoscaling"}


@pytest.mark.parametrize(("model", "name"), [(model, name) for model in SECTIONS for name in model.model_fields])
def test_a_field_rolls_what_its_description_says(model: type[BaseModel], name: str) -> None:
    extra = model.model_fields[name].json_schema_extra
    assert isinstance(extra, dict)
    expected = {Change.LIVE: set(), Change.ROLLING: {ENGINE}}[Change(str(extra["x-octavo-change"]))]
    start = {"max_replicas": 3} if model is Autoscaling else {}
    before = config(**{SECTIONS[model]: start})
    after = config(**{SECTIONS[model]: {**start, name: OTHER_VALUES[model][name]}})
    assert before != after
    assert rolls(before, after) == expected


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


def test_autoscaling_carries_bounds_and_delays_and_keeps_the_policy() -> None:
    scaling = {
        "minReplicas": 2,
        "maxReplicas": 5,
        "targetRequests": 7,
        "targetCachePercent": 60,
        "upscaleDelaySeconds": 1,
        "downscaleDelaySeconds": 2,
        "downscaleToZeroDelaySeconds": 3,
    }
    before, after = (deployment(config(**spec), ENGINE) for spec in ({}, {"autoscaling": scaling}))
    serve = after["autoscaling_config"]
    assert serve["policy"] == before["autoscaling_config"]["policy"]
    assert (serve["min_replicas"], serve["max_replicas"]) == (2, 5)
    assert (serve["upscale_delay_s"], serve["downscale_delay_s"], serve["downscale_to_zero_delay_s"]) == (1, 2, 3)
    engine = EngineUserConfig.model_validate(after["user_config"])
    assert (engine.target_requests, engine.target_cache_percent) == (7, 60)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"replicas": 0}, False),
        ({"autoscaling": {"minReplicas": 0, "maxReplicas": 1}}, True),
        ({"autoscaling": {"minReplicas": 1, "maxReplicas": 1}}, False),
    ],
)
def test_requests_are_held_where_engines_come_when_asked_for(spec: dict[str, Any], expected: bool) -> None:
    assert deployment(config(**spec), GATEWAY)["user_config"]["hold_requests"] is expected


def test_the_place_names_the_application_its_owner_and_its_doors() -> None:
    placement = replace(
        PLACEMENT,
        http_port=8000,
        tls_folder="/etc/octavo/tls",
        engine_resources={"octavo_engine": 1},
        gateway_resources={"octavo_gateway": 1},
    )
    made = config(placement)
    assert (made["name"], made["route_prefix"], made["args"]["owner"]) == ("books.m", "/books/m", "books/m")
    args = ApplicationArgs.model_validate(made["args"])
    assert (args.http_port, args.grpc_port, args.tls_folder) == (8000, 0, "/etc/octavo/tls")
    assert deployment(made, ENGINE)["ray_actor_options"]["resources"] == {"octavo_engine": 1}
    assert deployment(made, GATEWAY)["ray_actor_options"]["resources"] == {"octavo_gateway": 1}
    assert "resources" not in deployment(config(), ENGINE)["ray_actor_options"]


def test_no_secret_stands_in_the_configuration() -> None:
    assert "secret" not in json.dumps(config())


def test_environment_values_are_strings() -> None:
    env = deployment(config(), ENGINE)["ray_actor_options"]["runtime_env"]["env_vars"]
    assert all(isinstance(value, str) for value in env.values())


def test_engines_surge_as_the_document_says_where_the_place_has_room() -> None:
    def surge(placement: Placement, **rollout: Any) -> Any:
        return deployment(config(placement, rollout=rollout), ENGINE)["max_surge_percent"]

    assert surge(PLACEMENT) == 25
    assert surge(PLACEMENT, maxSurgePercent=0) == 0
    assert surge(replace(PLACEMENT, surge=False)) == 0
