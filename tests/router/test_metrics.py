from pathlib import Path

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from octavo_api.v1 import replica_pb2
from octavo_router.fleet.observer import Observer
from octavo_router.fleet.replica_status import ReplicaState
from octavo_router.metrics import Metrics
from octavo_router.metrics.__main__ import reference_page
from octavo_router.metrics.families import all_specs
from octavo_router.routing.feed import ResyncReason
from octavo_router.routing.route import Reason, Route

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def samples(text):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scrape(server, accept="text/plain"):
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.http_port}", verify=False) as http:
        answer = await http.get("/metrics", headers={"accept": accept})
    assert answer.status_code == 200
    return answer.text


async def test_a_request_is_counted_once_in_everything(server, pool, write):
    timing = replica_pb2.Timing(queue_s=0.004, prefill_s=0.02, decode_s=0.2, num_preemptions=1)
    pool.answer = lambda request: write.Script(
        [[write.output("ab", cached=3)], [write.output("c")], [write.output("d", finish="length", timing=timing)]]
    )
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.http_port}", verify=False) as http:
        body = {"model": "bytes", "prompt": "0123456789", "max_tokens": 4, "stop": ["zz"]}
        assert (await http.post("/v1/completions", json=body)).status_code == 200
        assert (await http.post("/v1/completions", json={})).status_code == 400
        assert (await http.get("/a/path/that/is/not")).status_code == 404
    found = samples(await scrape(server))
    expected = {
        "octavo_time_to_first_token_seconds": None,
        "octavo_e2e_request_latency_seconds": None,
        "octavo_request_queue_time_seconds": 0.004,
        "octavo_request_prefill_time_seconds": 0.02,
        "octavo_request_decode_time_seconds": 0.2,
        "octavo_request_prompt_tokens": 10,
        "octavo_request_generation_tokens": 4,
        "octavo_request_cached_tokens": 3,
        "octavo_request_params_n": 1,
        "octavo_request_params_max_tokens": 4,
        "octavo_request_num_preemptions": 1,
    }
    for name, total in expected.items():
        assert found[f"{name}_count",] == 1, name
        assert total is None or found[f"{name}_sum",] == pytest.approx(total), name
    assert found["octavo_inter_token_latency_seconds_count",] == 2
    assert found["octavo_request_success_total", ("finished_reason", "length")] == 1
    paths = {key[1:]: value for key, value in found.items() if key[0] == "octavo_http_requests_total"}
    assert paths == {
        (("code", "200"), ("path", "/v1/completions")): 1,
        (("code", "400"), ("path", "/v1/completions")): 1,
        (("code", "404"), ("path", "other")): 1,
    }


async def test_the_ways_to_end_are_counted_by_choice(server, pool, write):
    from octavo_api.errors import ReplicaLost

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.http_port}", verify=False) as http:
        await http.post("/v1/completions", json={"model": "bytes", "prompt": "x", "n": 2})
        pool.answer = lambda request: write.Script([[write.output("par")], ReplicaLost("gone")])
        await http.post("/v1/completions", json={"model": "bytes", "prompt": "x"})
    found = samples(await scrape(server))
    assert found["octavo_request_success_total", ("finished_reason", "stop")] == 2
    assert found["octavo_request_success_total", ("finished_reason", "error")] == 1


async def test_series_of_a_replica_end_when_it_is_removed(start_gateway, pool):
    metrics: Observer = (concrete := Metrics())
    server = await start_gateway(pool, metrics=concrete)
    load = replica_pb2.Load(
        num_requests_running=3, kv_blocks=8, kv_blocks_pinned=2, generation_tokens_total=77, num_preemptions_total=1
    )
    metrics.engine_load("r1", load)
    metrics.feed_state("r1", ReplicaState.LIVE)
    metrics.resync("r1", ResyncReason.SEQUENCE_GAP)
    metrics.decision(Route("r1", "prefix", Reason.HIT, 10, 0.1))
    metrics.select_seconds(2e-5)
    metrics.prediction(10, 16)
    metrics.queue(4)
    metrics.inflight(5)
    metrics.index_size(99, 2)
    found = samples(await scrape(server))
    replica = ("replica", "r1")
    assert found["octavo_num_requests_running", replica] == 3
    assert found["octavo_kv_cache_usage_perc", replica] == 0.25
    assert found["octavo_generation_tokens_total", replica] == 77
    assert found["octavo_num_preemptions_total", replica] == 1
    assert found["octavo_router_stream_state", replica, ("state", "live")] == 1
    assert found["octavo_router_stream_state", replica, ("state", "untrusted")] == 0
    assert found["octavo_router_stream_resyncs_total", ("reason", "sequence_gap"), replica] == 1
    assert found["octavo_router_load_age_seconds", replica] >= 0
    assert found["octavo_router_decisions_total", ("policy", "prefix"), ("reason", "hit")] == 1
    assert found["octavo_router_hit_tokens_total", ("kind", "actual")] == 16
    assert found["octavo_router_prediction_error_tokens_sum",] == 6
    assert (found["octavo_router_queued_requests",], found["octavo_router_inflight_requests",]) == (4, 5)
    assert found["octavo_router_index_keys",] == 99
    metrics.replica_removed("r1")
    assert "r1" not in await scrape(server)


async def test_two_gateways_of_one_process_count_apart(start_gateway, pool):
    one, two = await start_gateway(pool), await start_gateway(pool)
    one.metrics.queue(3)
    assert samples(await scrape(one))["octavo_router_queued_requests",] == 3
    assert samples(await scrape(two))["octavo_router_queued_requests",] == 0


async def test_openmetrics_on_request(server):
    text = await scrape(server, "application/openmetrics-text; version=1.0.0")
    assert {family.name for family in parse_openmetrics(text)} >= {"octavo_request_success", "octavo_kv_cache_blocks"}


async def test_every_family_is_shown_and_documented(server):
    shown = {family.name for family in text_string_to_metric_families(await scrape(server))}
    assert {spec.full_name for spec in all_specs()} == {name for name in shown if not name.endswith("_created")}
    assert PAGE.read_text() == reference_page(), f"run: python -m octavo_router.metrics > {PAGE}"
