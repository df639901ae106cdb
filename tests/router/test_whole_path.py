"""Real front ends, real router, real scheduler and protocol; only the tokens are made up."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import openai
import pytest
import pytest_asyncio

from octavo_api.settings import EngineSettings, RouterSettings
from octavo_engine.service.server import EngineServer
from octavo_engine.startup.synthetic import load_synthetic, next_token
from octavo_router.fleet.pool import ReplicaPool
from octavo_router.fleet.replica_status import ReplicaAddress
from octavo_router.metrics import Metrics
from octavo_testing.waiting import eventually_async

VOCABULARY = 256
SECRET = "a secret of the application"


def generated(prompt: list[int], number: int, choice: int = 0) -> list[int]:
    tokens = list(prompt)
    for _ in range(number):
        tokens.append(next_token(tokens[-1], len(tokens) - 1, choice, VOCABULARY))
    return tokens[len(prompt) :]


@pytest_asyncio.fixture
async def engines() -> AsyncIterator[list[EngineServer]]:
    settings = EngineSettings(max_model_len=1024, max_num_seqs=32)
    started = [
        await EngineServer.start(
            load_synthetic(f"synthetic://{VOCABULARY}", settings, step_time_s=0.002), replica=name, secret=SECRET
        )
        for name in ("a", "b")
    ]
    yield started
    for engine in started:
        await engine.stop()


@pytest_asyncio.fixture
async def gateway(engines, start_gateway):
    settings = RouterSettings(request_timeout_seconds=20)
    metrics = Metrics()
    pool = ReplicaPool(settings, gateway="test", secret=SECRET, metrics=metrics)
    server = await start_gateway(pool, settings=settings, metrics=metrics)
    assert not server.gateway.ready
    pool.update_replicas([ReplicaAddress(engine.replica, "127.0.0.1", engine.port) for engine in engines])
    await eventually_async("all replicas are routable", lambda: all(replica.routable for replica in pool.replicas()))
    yield server
    await pool.close()


@pytest_asyncio.fixture
async def http(gateway):
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.http_port}", verify=False, timeout=20) as client:
        yield client


async def test_tokens_arrive_as_the_engine_made_them(http):
    """Compare streamed and buffered text. Random bytes are mostly invalid UTF-8."""
    prompt = list(b"a prompt of more than one block, to be cached")
    body = {"model": "bytes", "prompt": prompt, "max_tokens": 40, "n": 2, "ignore_eos": True, "return_token_ids": True}
    whole = (await http.post("/v1/completions", json=body)).json()
    streamed = await http.post("/v1/completions", json=body | {"stream": True})
    events = [json.loads(event[6:]) for event in streamed.text.split("\n\n")[:-2]]
    for choice in (0, 1):
        expected = generated(prompt, 40, choice)
        text = bytes(expected).decode(errors="replace")
        assert whole["choices"][choice]["token_ids"] == expected
        assert whole["choices"][choice]["text"] == text
        parts = [event["choices"][0] for event in events if event["choices"][0]["index"] == choice]
        assert [token for part in parts for token in part["token_ids"]] == expected
        assert "".join(part["text"] for part in parts) == text
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == ["length"]


async def test_the_logs_of_gateway_and_engine_share_an_id_without_text(http, caplog):
    caplog.set_level("INFO")
    body = {"model": "bytes", "prompt": "the prompt itself", "max_tokens": 5, "ignore_eos": True}
    answer = (await http.post("/v1/completions", json=body)).json()
    lines = {(r.name, r.getMessage()) for r in caplog.records if getattr(r, "request_id", "") in answer["id"]}
    engine = [message for name, message in lines if name == "octavo_engine.service.peer"]
    assert sorted(engine) == ["request ended: length", "request of test: 17 prompt tokens, priority 0"]
    (gateway,) = [message for name, message in lines if name == "octavo_router.answers.request_log"]
    assert gateway.startswith("request ended: length on ")
    assert "prompt 17 tokens (0 cached), output 5; queued" in gateway
    assert not any("prompt itself" in message or answer["choices"][0]["text"] in message for _, message in lines)


async def test_the_log_holds_the_error_and_the_end_of_each_choice(http, caplog):
    caplog.set_level("INFO")
    refused = {"model": "bytes", "prompt": [1] * 1000, "max_tokens": 100}
    assert (await http.post("/v1/completions", json=refused)).status_code == 400
    assert (await http.post("/v1/completions", json=refused | {"max_tokens": 2, "n": 2})).status_code == 200
    ends = [r.getMessage() for r in caplog.records if r.getMessage().startswith("request ended: ")]
    assert any(message.startswith("request ended: error ") and "ContextLengthExceeded: " in message for message in ends)
    assert "request ended: length/length" in ends


async def test_the_second_time_the_prefix_is_cached_for_the_same_salt_alone(http):
    prompt = list(range(200))
    cached = []
    for salt in ("", "", "other"):
        body = {"model": "bytes", "prompt": prompt, "max_tokens": 2, "cache_salt": salt, "ignore_eos": True}
        answer = await http.post("/v1/completions", json=body, headers={"x-octavo-explain": "1"})
        cached.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert answer.json()["octavo"]["cached_tokens"] == cached[-1]
        await asyncio.sleep(0.05)
    assert cached == [0, 192, 0]


async def test_the_limits_of_the_engines_apply(http):
    assert (await http.get("/v1/models")).json()["data"][0]["max_model_len"] == 1024
    answer = await http.post("/v1/completions", json={"model": "bytes", "prompt": [1] * 1000, "max_tokens": 100})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert all(number in answer.json()["error"]["message"] for number in ("1000", "1024"))


async def test_prompt_logprobs_by_echo(http):
    body = {"model": "bytes", "prompt": [5, 6, 7], "max_tokens": 1, "echo": True, "logprobs": 2, "ignore_eos": True}
    logprobs = (await http.post("/v1/completions", json=body)).json()["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == 4
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:] == pytest.approx([-5.545] * 3, abs=0.01)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_frees_the_engine(gateway, engines, stream):
    body = json.dumps(
        {"model": "bytes", "prompt": [1], "max_tokens": 900, "n": 3, "ignore_eos": True, "stream": stream}
    )
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.http_port)
    writer.write(f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
    await eventually_async("an engine has the request", lambda: sum(engine.active_requests for engine in engines) == 1)
    writer.transport.abort()
    await eventually_async("no engine has a request", lambda: sum(engine.active_requests for engine in engines) == 0)
    await eventually_async(
        "no engine runs a request", lambda: sum(engine.load().num_requests_running for engine in engines) == 0
    )
    assert sum(engine.load().generation_tokens_total for engine in engines) < 3 * 900


async def test_a_stop_string_ends_one_choice_in_the_engine(gateway, engines, http):
    text = bytes(generated([1], 60)).decode(errors="replace")
    stop = next(text[at : at + 2] for at in range(20, 50) if text[at : at + 2].isascii())
    body = {"model": "bytes", "prompt": [1], "max_tokens": 800, "ignore_eos": True, "stop": stop}
    answer = (await http.post("/v1/completions", json=body)).json()
    assert answer["choices"][0]["text"] == text[: text.index(stop)]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] < 60
    await eventually_async("no engine has a request", lambda: sum(engine.active_requests for engine in engines) == 0)


async def test_a_stop_string_within_min_tokens_is_text(http):
    tokens = generated([1], 60)
    text = bytes(tokens).decode(errors="replace")
    stop = text[2:4]
    body = {"model": "bytes", "prompt": [1], "max_tokens": 60, "ignore_eos": True, "stop": stop}
    (choice,) = (await http.post("/v1/completions", json=body)).json()["choices"]
    assert (choice["text"], choice["stop_reason"]) == (text[: text.index(stop)], stop)
    (choice,) = (await http.post("/v1/completions", json=body | {"min_tokens": 59})).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text, "length")


async def test_many_clients_at_once(gateway, engines):
    url = f"http://127.0.0.1:{gateway.http_port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=20) as client:

        async def ask(number):
            prompt = [number, 2, 3]
            extra = {"ignore_eos": True, "return_token_ids": True}
            stream = await client.completions.create(
                model="bytes", prompt=prompt, max_tokens=30, stream=True, extra_body=extra
            )
            got = [token async for chunk in stream for token in chunk.choices[0].token_ids]
            assert got == generated(prompt, 30)

        await asyncio.gather(*(ask(number) for number in range(64)))
    registry = gateway.metrics.registry
    assert registry.get_sample_value("octavo_request_success_total", {"finished_reason": "length"}) == 64
    assert registry.get_sample_value("octavo_request_queue_time_seconds_count") == 64
    assert registry.get_sample_value("octavo_time_to_first_token_seconds_count") == 64


async def test_the_gateway_is_not_ready_without_engines(gateway, engines, http):
    await asyncio.gather(*(engine.drain(1) for engine in engines))
    await eventually_async("the gateway is not ready", lambda: not gateway.gateway.ready)
    assert (await http.get("/ready")).status_code == 503
    answer = await http.post("/v1/completions", json={"model": "bytes", "prompt": [1]})
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
