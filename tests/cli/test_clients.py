"""OpenAI's Python client and a plain grpcio client, unmodified, against ``octavo up`` with the embedded model."""

import signal
from collections.abc import Iterator

import grpc
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from openai import OpenAI

from octavo_api.v1 import inference_pb2, inference_pb2_grpc, sampling_pb2
from octavo_testing.command import Up
from octavo_testing.processes import free_ports

pytestmark = [pytest.mark.ray, pytest.mark.model, pytest.mark.timeout(150)]

MODEL = "smollm2"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """HTTP and gRPC port of a running ``octavo up``."""
    http, rpc = free_ports(2)
    up = Up.start(tmp_path_factory.mktemp("up") / "said", (http, rpc), "--set", "engine.kv_cache_memory_bytes=128Mi")
    try:
        up.wait_for("Ready in")
        yield http, rpc
        up.process.send_signal(signal.SIGINT)
        up.process.wait(30)
    finally:
        up.end()


@pytest.fixture(scope="module")
def client(ports: tuple[int, int]) -> OpenAI:
    return OpenAI(base_url=f"http://127.0.0.1:{ports[0]}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def channel(ports: tuple[int, int]) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{ports[1]}") as channel:
        yield channel


@pytest.fixture(scope="module")
def stub(channel: grpc.Channel) -> inference_pb2_grpc.InferenceStub:
    return inference_pb2_grpc.InferenceStub(channel)


def test_a_chat_knows_paris_streamed_or_not(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_completion_tokens=24)
    assert "Paris" in whole.choices[0].message.content
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            temperature=0,
            max_completion_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    deltas = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(deltas) == whole.choices[0].message.content
    finishes = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert finishes == [whole.choices[0].finish_reason]
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_repeated_prompt_comes_from_the_cache(client: OpenAI) -> None:
    prompt = "The library of a small town keeps many old books. " * 8
    first = client.completions.create(model=MODEL, prompt=prompt, max_tokens=4, temperature=0)
    second = client.completions.create(model=MODEL, prompt=prompt, max_tokens=4, temperature=0)
    assert first.choices[0].text == second.choices[0].text
    assert first.usage.prompt_tokens_details.cached_tokens < 16
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert second.usage.prompt_tokens - 16 <= cached < second.usage.prompt_tokens


def test_three_choices_differ_and_a_seed_repeats_them(client: OpenAI) -> None:
    def ask() -> list[str]:
        answer = client.completions.create(
            model=MODEL, prompt="Once upon a time", n=3, seed=7, temperature=1, max_tokens=16
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        return [choice.text for choice in answer.choices]

    first = ask()
    assert len(set(first)) == 3
    assert ask() == first


def test_a_stop_string_ends_the_text_before_it(client: OpenAI) -> None:
    free = client.completions.create(model=MODEL, prompt="One, two, three,", max_tokens=24, temperature=0)
    text = free.choices[0].text
    stop = text[5:9]
    stopped = client.completions.create(model=MODEL, prompt="One, two, three,", max_tokens=24, temperature=0, stop=stop)
    assert stopped.choices[0].text == text[: text.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"


def test_logprobs_of_a_chat_and_of_a_completion(client: OpenAI) -> None:
    chat = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_completion_tokens=4, logprobs=True, top_logprobs=3
    )
    for position in chat.choices[0].logprobs.content:
        assert position.logprob == max(best.logprob for best in position.top_logprobs) <= 0
        assert len(position.top_logprobs) == 3
    echo = client.completions.create(
        model=MODEL, prompt="The sky is", temperature=0, max_tokens=2, logprobs=1, echo=True
    )
    logprobs = echo.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert "".join(logprobs.tokens) == echo.choices[0].text
    assert echo.choices[0].text.startswith("The sky is")


def test_errors_have_openais_types(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-7", messages=QUESTION)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as hot:
        client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=3)
    assert hot.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=MODEL, prompt="book " * 20000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as unknown:
        client.chat.completions.create(model=MODEL, messages=QUESTION, extra_body={"temprature": 1})
    assert unknown.value.param == "temprature"
    assert [model.id for model in client.models.list()] == [MODEL]


def generate(**sampling: object) -> inference_pb2.GenerateRequest:
    chat = inference_pb2.Chat(messages=[inference_pb2.ChatMessage(**message) for message in QUESTION])
    params = sampling_pb2.SamplingParams(**{"temperature": 0, "max_tokens": 24, **sampling})
    return inference_pb2.GenerateRequest(chat=chat, sampling=params)


def test_grpc_gives_the_text_of_http_streamed_or_not(client: OpenAI, stub: inference_pb2_grpc.InferenceStub) -> None:
    http = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_completion_tokens=24)
    whole = stub.Generate(generate(), timeout=60)
    assert whole.choices[0].text == http.choices[0].message.content
    assert whole.usage.prompt_tokens == http.usage.prompt_tokens
    chunks = list(stub.GenerateStream(generate(), timeout=60))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_grpc_choices_logprobs_and_errors(stub: inference_pb2_grpc.InferenceStub) -> None:
    answer = stub.Generate(generate(n=3, temperature=1, seed=3, logprobs=2, max_tokens=6), timeout=60)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert all(len(choice.logprobs) == len(choice.token_ids) for choice in answer.choices)
    with pytest.raises(grpc.RpcError) as error:
        stub.Generate(generate(temperature=3), timeout=60)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "temperature" in error.value.details()
    with pytest.raises(grpc.RpcError) as late:
        stub.Generate(generate(max_tokens=2000, ignore_eos=True), timeout=0.5)
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_grpc_health_and_models(channel: grpc.Channel, stub: inference_pb2_grpc.InferenceStub) -> None:
    health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    assert [model.id for model in stub.ListModels(inference_pb2.ListModelsRequest(), timeout=10).models] == [MODEL]
