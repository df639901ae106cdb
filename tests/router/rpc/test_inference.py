import asyncio

import grpc
import pytest

from octavo_api.errors import ContextLengthExceeded, QueueFull, ReplicaLost
from octavo_api.v1 import inference_pb2 as pb
from octavo_api.v1 import inference_pb2_grpc, sampling_pb2
from octavo_router.front.keys import ApiKeys
from octavo_testing.waiting import eventually_async

STOP = sampling_pb2.FINISH_REASON_STOP


def request(**fields):
    return pb.GenerateRequest(**{"text": "Hi"} | fields)


async def test_generate_returns_the_complete_answer(stub, pool):
    sampling = sampling_pb2.SamplingParams(n=2, temperature=0, max_tokens=9)
    answer = await stub.Generate(request(sampling=sampling, explain=True))
    assert answer.id.startswith("gen-")
    assert answer.model == "bytes"
    assert [(choice.index, choice.text, choice.finish_reason) for choice in answer.choices] == [
        (0, "Hello, world", STOP),
        (1, "Hello, world", STOP),
    ]
    assert bytes(answer.choices[0].token_ids[:-1]) == b"Hello, world"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.cached_tokens) == (2, 26, 2)
    assert (answer.route.replica, answer.route.reason, answer.route.cached_tokens) == ("replica-0", "hit", 2)
    assert pool.requests[0].sampling.max_tokens == 9


async def test_generate_stream_returns_deltas_and_usage(stub):
    chunks = [chunk async for chunk in stub.GenerateStream(request())]
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "Hello, world"
    ends = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert ends == [STOP]
    assert not chunks[-1].choices
    assert chunks[-1].usage.completion_tokens == 13
    assert not chunks[-1].HasField("route")
    assert not any(chunk.HasField("usage") for chunk in chunks[:-1])


async def test_unset_parameters_take_the_models_defaults(stub, pool):
    await stub.Generate(request())
    await stub.Generate(request(sampling=sampling_pb2.SamplingParams(temperature=1)))
    assert [each.sampling.temperature for each in pool.requests] == [0.5, 1.0]


async def test_every_kind_of_prompt_is_accepted(stub, pool):
    message = pb.ChatMessage(role="user", content="Hi")
    await stub.Generate(pb.GenerateRequest(tokens=pb.TokenIds(ids=[1, 2])))
    await stub.Generate(pb.GenerateRequest(chat=pb.Chat(messages=[message])))
    await stub.Generate(pb.GenerateRequest(chat=pb.Chat(messages=[message], add_generation_prompt=False)))
    assert pool.requests[0].token_ids == [1, 2]
    assert bytes(pool.requests[1].token_ids) == b"<|user|>Hi\n<|bot|>"
    assert bytes(pool.requests[2].token_ids) == b"<|user|>Hi\n"


async def test_stop_string(stub):
    answer = await stub.Generate(request(stop=["lo"]))
    assert answer.choices[0].text == "Hel"
    assert answer.choices[0].stop_string == "lo"


async def test_prompt_logprobs_come_once(stub, pool, write):
    def answer(request):
        scored = [write.output(logprobs=0, prompt=request.token_ids[1:])]
        return write.Script([scored, [write.output("a")], [write.output("b", finish="length")]])

    pool.answer = answer
    asked = request(text="abc", sampling=sampling_pb2.SamplingParams(prompt_logprobs=0))
    whole = await stub.Generate(asked)
    chunks = [chunk async for chunk in stub.GenerateStream(asked)]
    expected = [ord("b"), ord("c")]
    assert [position.chosen.token_id for position in whole.prompt_logprobs] == expected
    assert [position.chosen.token_id for chunk in chunks for position in chunk.prompt_logprobs] == expected


@pytest.mark.parametrize(
    ("message", "code", "words"),
    [
        (pb.GenerateRequest(), grpc.StatusCode.INVALID_ARGUMENT, ["prompt", "text, tokens or chat"]),
        (request(text=""), grpc.StatusCode.INVALID_ARGUMENT, ["prompt", "at least one token"]),
        (request(model="other"), grpc.StatusCode.NOT_FOUND, ["'other'", "'bytes'"]),
        (request(stop=["x"] * 17), grpc.StatusCode.INVALID_ARGUMENT, ["stop", "17", "16"]),
        (request(stop=[""]), grpc.StatusCode.INVALID_ARGUMENT, ["stop", "1 to"]),
        (
            request(sampling=sampling_pb2.SamplingParams(temperature=float("nan"))),
            grpc.StatusCode.INVALID_ARGUMENT,
            ["temperature", "nan", "0 to 2"],
        ),
        (
            request(sampling=sampling_pb2.SamplingParams(n=65)),
            grpc.StatusCode.INVALID_ARGUMENT,
            ["n", "65", "1 to 64"],
        ),
        (
            request(sampling=sampling_pb2.SamplingParams(stop_token_ids=[260])),
            grpc.StatusCode.INVALID_ARGUMENT,
            ["stop_token_ids", "260", "259"],
        ),
        (pb.GenerateRequest(tokens=pb.TokenIds(ids=[260])), grpc.StatusCode.INVALID_ARGUMENT, ["260", "259"]),
        (pb.GenerateRequest(chat=pb.Chat()), grpc.StatusCode.INVALID_ARGUMENT, ["chat.messages", "one message"]),
        (
            pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="robot")])),
            grpc.StatusCode.INVALID_ARGUMENT,
            ["chat.messages[0].role", "'robot'", "user"],
        ),
    ],
)
async def test_errors_of_bad_requests_name_the_problem(stub, message, code, words):
    with pytest.raises(grpc.aio.AioRpcError) as unary:
        await stub.Generate(message)
    with pytest.raises(grpc.aio.AioRpcError) as stream:
        async for _ in stub.GenerateStream(message):
            pass
    for caught in (unary.value, stream.value):
        assert caught.code() == code
        assert all(word in caught.details() for word in words), caught.details()
    assert (await stub.Generate(request())).choices[0].text == "Hello, world"


async def test_errors_have_their_codes_and_retry_after(stub, pool, write):
    pool.answer = lambda request: write.Script(refuse=QueueFull("full", retry_after_s=1.2))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Generate(request())
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert ("retry-after", "2") in tuple(caught.value.trailing_metadata())
    pool.answer = lambda request: write.Script(refuse=ContextLengthExceeded("600 tokens; allowed: 512"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Generate(request())
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_replica_lost_during_a_stream_is_an_error_in_it(stub, pool, write):
    pool.answer = lambda request: write.Script([[write.output("par")], ReplicaLost("gone")])
    call = stub.GenerateStream(request())
    assert (await call.read()).choices[0].text == "par"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_restarted_answer_has_nothing_of_the_first_attempt(stub, pool, write):
    pool.answer = lambda request: write.Script([[write.output("par")], "again", [write.output("all", finish="length")]])
    answer = await stub.Generate(request())
    assert (answer.choices[0].text, answer.usage.completion_tokens) == ("all", 3)
    assert pool.requests[0].buffered
    await stub.GenerateStream(request()).read()
    assert not pool.requests[1].buffered


async def test_a_bug_is_an_internal_error_without_details(stub, pool, write):
    pool.answer = lambda request: write.Script([RuntimeError("a bug")])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Generate(request())
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert "bug" not in caught.value.details()


@pytest.mark.parametrize("streaming", [False, True])
async def test_cancelled_calls_are_aborted_in_the_engine(stub, pool, write, server, streaming):
    pool.answer = lambda request: write.Script([[write.output("a")], asyncio.Event()])
    call = stub.GenerateStream(request()) if streaming else stub.Generate(request())
    await eventually_async("the request is in the pool", lambda: pool.streams)
    call.cancel()
    await asyncio.wait_for(pool.last.closed.wait(), 20)
    assert server.active_requests == 0


async def test_the_clients_deadline_is_the_engines_and_ends_the_call(stub, pool, write):
    pool.answer = lambda request: write.Script([asyncio.Event()])
    before = asyncio.get_running_loop().time()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Generate(request(), timeout=2)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert 0 < pool.requests[0].deadline - before <= 3
    await asyncio.wait_for(pool.last.closed.wait(), 20)


async def test_list_models(stub):
    models = (await stub.ListModels(pb.ListModelsRequest())).models
    assert [(model.id, model.max_model_len) for model in models] == [("bytes", 512)]


async def test_keys_and_tenants(start_gateway, pool, key_file):
    server = await start_gateway(pool, keys=ApiKeys.from_file(key_file))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        for metadata in ((), (("authorization", "Bearer wrong"),)):
            for call in (stub.Generate(request(), metadata=metadata), stub.ListModels(pb.ListModelsRequest())):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        await stub.Generate(request(cache_salt="s"), metadata=(("authorization", "Bearer key-of-acme-2"),))
    assert pool.requests[0].tenant == "acme"
    assert pool.requests[0].cache_salt == "acme/s"


async def test_a_synchronous_client(server):
    def ask():
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            answer = stub.Generate(request(), timeout=5)
            chunks = list(stub.GenerateStream(request(), timeout=5))
            return answer.choices[0].text, "".join(c.text for chunk in chunks for c in chunk.choices)

    assert await asyncio.to_thread(ask) == ("Hello, world", "Hello, world")
