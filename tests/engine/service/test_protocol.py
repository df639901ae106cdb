import asyncio

import grpc
import pytest

from octavo_api.errors import RequestError
from octavo_api.protocol import PROTOCOL_VERSION
from octavo_api.settings import EngineSettings
from octavo_api.v1 import replica_pb2, sampling_pb2
from octavo_testing.engine.replica import continuation

STOP, LENGTH, ABORT = (
    sampling_pb2.FINISH_REASON_STOP,
    sampling_pb2.FINISH_REASON_LENGTH,
    sampling_pb2.FINISH_REASON_ABORT,
)
PROMPT = list(range(10, 30))


def kind(received) -> str:
    assert received.error is not None
    return received.error.kind


async def test_hello_has_identity_and_limits_of_the_replica(serve, attach):
    replica = await serve(num_blocks=64, max_num_seqs=8, max_num_queued_reqs=5, max_num_batched_tokens=128)
    gateway = await attach(replica)
    hello = gateway.hello
    assert (hello.version, hello.replica, hello.epoch) == (PROTOCOL_VERSION, "replica-0", replica.server.epoch)
    assert (hello.model_key, hello.kv_dtype, hello.block_size) == ("synthetic://1000", "none", 4)
    assert (hello.stride, hello.capacity_blocks) == (1, 64)
    assert hello.limits == replica_pb2.Limits(max_model_len=512, max_num_seqs=8, kv_cache_tokens=256)


async def test_load_is_known_before_any_request(serve, attach):
    gateway = await attach(await serve(num_blocks=64))
    await gateway.until(lambda: gateway.seq)
    assert gateway.step.load.kv_blocks == 64
    assert gateway.step.load.num_requests_running == 0


async def test_an_idle_replica_keeps_sending_beats(serve, attach):
    gateway = await attach(await serve())
    await gateway.until(lambda: gateway.seq >= 4)


async def test_an_epoch_is_new_at_every_start(serve):
    first, second = await serve(), await serve()
    assert first.server.epoch < second.server.epoch


@pytest.mark.parametrize("version", [0, PROTOCOL_VERSION + 1])
async def test_another_version_is_refused(serve, make_gateway, version):
    gateway = make_gateway(await serve(), version=version)
    await gateway.greet()
    assert await gateway.call.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert str(version) in await gateway.call.details()


@pytest.mark.parametrize("secret", ["", "wrong", "a secret "])
async def test_a_wrong_secret_is_refused(serve, make_gateway, secret):
    gateway = make_gateway(await serve(), secret=secret)
    assert await gateway.call.code() == grpc.StatusCode.UNAUTHENTICATED
    assert "a secret" not in await gateway.call.details()


async def test_without_a_secret_everybody_may_attach(serve, attach):
    gateway = await attach(await serve(secret=""), secret="whatever")
    assert gateway.hello


async def test_a_stream_must_begin_with_a_greeting(serve, make_gateway):
    gateway = make_gateway(await serve())
    await gateway.call.write(replica_pb2.GatewayMessage(snapshot_request=replica_pb2.SnapshotRequest()))
    assert await gateway.call.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_request_brings_its_tokens_and_ends_once(serve, attach):
    gateway = await attach(await serve())
    received = await gateway.submit(1, PROMPT, max_tokens=20)
    await gateway.finished(received)
    assert received.tokens == {0: continuation(PROMPT, 20)}
    assert received.finished == {0: LENGTH}
    assert received.cached_tokens == 0
    assert received.timing.decode_s >= 0
    again = await gateway.submit(2, PROMPT, max_tokens=20)
    await gateway.finished(again)
    assert again.tokens == received.tokens
    assert again.cached_tokens == 16


async def test_two_steps_in_flight_give_the_same_tokens(serve, attach):
    gateway = await attach(await serve(steps_in_flight=2))
    requests = [await gateway.submit(i, [i, *PROMPT], max_tokens=30) for i in range(8)]
    await gateway.finished(*requests)
    assert [r.tokens[0] for r in requests] == [continuation([i, *PROMPT], 30) for i in range(8)]


async def test_a_stop_token_ends_the_choice_and_is_named(serve, attach):
    expected = continuation(PROMPT, 5)
    gateway = await attach(await serve())
    received = await gateway.submit(1, PROMPT, max_tokens=20, stop_token_ids=[expected[4]])
    await gateway.finished(received)
    assert received.finished == {0: STOP}
    assert received.stop_token_ids == {0: expected[4]}


async def test_choices_stream_side_by_side(serve, attach):
    gateway = await attach(await serve())
    received = await gateway.submit(1, PROMPT, n=3, max_tokens=20)
    await gateway.finished(received)
    assert received.tokens == {choice: continuation(PROMPT, 20, choice) for choice in range(3)}
    assert received.finished == dict.fromkeys(range(3), LENGTH)


async def test_aborting_one_choice_leaves_the_others(serve, attach):
    replica = await serve(stepped=True)
    gateway = await attach(replica)
    received = await gateway.submit(1, PROMPT, n=3, max_tokens=400)
    await replica.runner.allow(3)
    await gateway.until(lambda: received.tokens[1])
    await gateway.abort(1, choice=1)
    await gateway.abort(1, choice=1)
    await gateway.until_steps_reach(replica.runner, lambda: 1 in received.finished)
    replica.runner.free()
    await gateway.finished(received)
    assert received.finished == {0: LENGTH, 1: ABORT, 2: LENGTH}
    assert [received.tokens[choice] for choice in (0, 2)] == [continuation(PROMPT, 400, choice) for choice in (0, 2)]
    assert received.tokens[1] == continuation(PROMPT, 400, 1)[: len(received.tokens[1])]


async def test_aborting_a_request_ends_every_choice_once(serve, attach):
    replica = await serve(step_time_s=0.005)
    gateway = await attach(replica)
    received = await gateway.submit(1, PROMPT, n=3, max_tokens=400)
    await gateway.until(lambda: received.tokens[2])
    await gateway.abort(1)
    await gateway.abort(1)
    await gateway.finished(received)
    assert received.finished == dict.fromkeys(range(3), ABORT)
    assert replica.server.active_requests == 0


async def test_an_abort_of_nothing_is_ignored(serve, attach):
    gateway = await attach(await serve())
    await gateway.abort(99)
    received = await gateway.submit(1, PROMPT, max_tokens=2)
    await gateway.finished(received)
    await gateway.abort(1)
    other = await gateway.submit(2, PROMPT, max_tokens=2)
    await gateway.finished(other)
    assert other.finished == {0: LENGTH}


async def test_an_id_may_be_used_again_after_its_end(serve, attach):
    replica = await serve(step_time_s=0.005)
    gateway = await attach(replica)
    first = await gateway.submit(1, PROMPT, max_tokens=400)
    await gateway.until(lambda: first.tokens[0])
    await gateway.abort(1)
    await gateway.finished(first)
    second = await gateway.submit(1, [*PROMPT, 5], max_tokens=3)
    await gateway.finished(second)
    assert second.tokens[0] == continuation([*PROMPT, 5], 3)


async def test_a_second_submit_under_a_running_id_ends_that_id_alone(serve, attach):
    replica = await serve(stepped=True)
    gateway = await attach(replica)
    other = await gateway.submit(2, PROMPT, max_tokens=5)
    await gateway.submit(1, PROMPT, max_tokens=400)
    await replica.runner.at_gate()
    received = await gateway.submit(1, PROMPT, max_tokens=400)
    await gateway.until(lambda: received.error)
    replica.runner.free()
    await gateway.finished(other)
    assert kind(received) == "InvalidRequest"
    await gateway.until(lambda: gateway.step.load.num_requests_running == 0)


async def test_a_deadline_ends_a_request_and_keeps_its_output(serve, attach):
    replica = await serve(step_time_s=0.02)
    gateway = await attach(replica)
    received = await gateway.submit(1, PROMPT, max_tokens=400, timeout_s=0.2)
    await gateway.finished(received)
    assert kind(received) == "DeadlineExceeded"
    assert 0 < len(received.tokens[0]) < 400


async def test_a_deadline_reaches_a_waiting_request(serve, attach):
    replica = await serve(step_time_s=0.02, max_num_seqs=1)
    gateway = await attach(replica)
    running = await gateway.submit(1, PROMPT, max_tokens=100)
    waiting = await gateway.submit(2, PROMPT, max_tokens=100, timeout_s=0.1)
    await gateway.finished(waiting)
    assert kind(waiting) == "DeadlineExceeded"
    assert not running.done
    await gateway.finished(running)


async def test_a_full_queue_rejects_at_once_with_retry_after(serve, attach):
    replica = await serve(stepped=True, max_num_seqs=1, max_num_queued_reqs=1)
    gateway = await attach(replica)
    running = await gateway.submit(1, PROMPT, max_tokens=5)
    await replica.runner.allow(2)
    await replica.runner.at_gate()
    waiting = await gateway.submit(2, PROMPT, max_tokens=5)
    refused = await gateway.submit(3, PROMPT, max_tokens=5)
    await gateway.until(lambda: replica.server.active_requests == 3)
    await replica.runner.allow()
    await gateway.until(lambda: refused.error)
    assert kind(refused) == "QueueFull"
    replica.runner.free()
    await gateway.finished(running, waiting)


async def test_a_refusal_does_not_wait_for_the_step(serve, attach):
    replica = await serve(stepped=True)
    gateway = await attach(replica)
    running = await gateway.submit(1, PROMPT, max_tokens=5)
    await replica.runner.at_gate()
    await gateway.submit(2, PROMPT * 50, max_tokens=5)
    await gateway.until(lambda: replica.server.active_requests == 2)
    await replica.runner.allow()
    await replica.runner.at_gate()
    await gateway.until(lambda: gateway.received[2].error)
    assert not running.done
    replica.runner.free()
    await gateway.finished(running)


@pytest.mark.parametrize(
    ("prompt", "options", "expected"),
    [
        ([], {}, "InvalidRequest"),
        ([5, 1000, 7], {}, "InvalidRequest"),
        (list(range(600)), {}, "ContextLengthExceeded"),
        (PROMPT, {"max_tokens": 600}, "ContextLengthExceeded"),
        (PROMPT * 10, {"max_tokens": 300}, "CacheCapacityExceeded"),
        (PROMPT, {"temperature": 3.0}, "InvalidRequest"),
        (PROMPT, {"n": 65}, "InvalidRequest"),
        (PROMPT, {"stop_token_ids": [1000]}, "InvalidRequest"),
        (PROMPT, {"logit_bias": {1000: 1.0}}, "InvalidRequest"),
        (PROMPT, {"timeout_s": -1.0}, "InvalidRequest"),
        (PROMPT, {"timeout_s": float("nan")}, "InvalidRequest"),
        (PROMPT, {"hashes": b"short"}, "InvalidRequest"),
        (PROMPT, {"hashes": bytes(16 * 5)}, "InvalidRequest"),
    ],
)
async def test_a_request_that_cannot_run_is_rejected_alone(serve, attach, prompt, options, expected):
    gateway = await attach(await serve(num_blocks=64))
    other = await gateway.submit(1, PROMPT, max_tokens=30) if "hashes" not in options else None
    refused = await gateway.submit(2, prompt, **options)
    await gateway.finished(refused)
    assert isinstance(RequestError.from_proto(refused.error), RequestError)
    assert kind(refused) == expected
    assert refused.error.message
    if other is not None:
        await gateway.finished(other)
        assert other.tokens[0] == continuation(PROMPT, 30)


async def test_hashes_may_be_left_to_the_engine(serve, attach):
    gateway = await attach(await serve())
    first = await gateway.submit(1, PROMPT, max_tokens=2)
    await gateway.finished(first)
    second = await gateway.submit(2, PROMPT, max_tokens=2, hashes=b"")
    await gateway.finished(second)
    assert second.cached_tokens == 16


async def test_a_chain_of_another_length_is_rejected_if_not_verified(serve, attach):
    gateway = await attach(await serve())
    verified = await gateway.submit(1, PROMPT, max_tokens=2)
    await gateway.finished(verified)
    for number, length in ((2, 8), (3, 16 * 5)):
        refused = await gateway.submit(number, PROMPT, hashes=bytes(length))
        await gateway.finished(refused)
        assert (kind(refused), refused.error.param) == ("InvalidRequest", "hashes")


async def test_salts_share_nothing(serve, attach):
    gateway = await attach(await serve())
    for number, (salt, cached) in enumerate([("a", 0), ("b", 0), ("a", 16), ("", 0)]):
        received = await gateway.submit(number, PROMPT, max_tokens=2, salt=salt)
        await gateway.finished(received)
        assert received.cached_tokens == cached


async def test_logprobs_come_with_their_tokens(serve, attach):
    gateway = await attach(await serve(long_prefill_token_threshold=8))
    received = await gateway.submit(1, PROMPT, max_tokens=6, logprobs=2, prompt_logprobs=1)
    await gateway.finished(received)
    assert [item.chosen.token_id for item in received.logprobs[0]] == received.tokens[0]
    assert all(len(item.top) == 2 for item in received.logprobs[0])
    assert [item.chosen.token_id for item in received.prompt_logprobs] == PROMPT[1:]


async def test_equal_ids_of_two_gateways_do_not_meet(serve, attach):
    replica = await serve(stepped=True)
    one, two = await attach(replica, name="one"), await attach(replica, name="two")
    first = await one.submit(1, PROMPT, max_tokens=400)
    second = await two.submit(1, [*PROMPT, 5], max_tokens=20)
    await replica.runner.allow(2)
    await one.abort(1)
    await one.until_steps_reach(replica.runner, lambda: first.done)
    replica.runner.free()
    await two.finished(second)
    assert first.finished == {0: ABORT}
    assert second.tokens[0] == continuation([*PROMPT, 5], 20)


async def test_settings_change_while_it_runs(serve, attach):
    replica = await serve(stepped=True, max_num_seqs=1, max_num_queued_reqs=0)
    gateway = await attach(replica)
    running = await gateway.submit(1, PROMPT, max_tokens=50)
    await replica.runner.at_gate()
    replica.server.reconfigure(EngineSettings(max_num_queued_reqs=3, long_prefill_token_threshold=8))
    await replica.runner.allow(2)
    waiting = await gateway.submit(2, PROMPT, max_tokens=2)
    replica.runner.free()
    await gateway.finished(running, waiting)
    assert waiting.finished == {0: LENGTH}


async def test_many_gateways_many_requests_all_end_right(serve, attach):
    replica = await serve(num_blocks=128, max_num_seqs=16)
    gateways = [await attach(replica, name=f"gateway-{i}") for i in range(4)]

    async def run(gateway, offset: int) -> None:
        prompts = [[offset + i, *PROMPT[: i % 17]] for i in range(25)]
        requests = [await gateway.submit(i, prompt, max_tokens=1 + i % 40) for i, prompt in enumerate(prompts)]
        await gateway.finished(*requests)
        for i, (prompt, received) in enumerate(zip(prompts, requests, strict=True)):
            assert received.tokens[0] == continuation(prompt, 1 + i % 40)

    await asyncio.gather(*(run(gateway, 100 * i) for i, gateway in enumerate(gateways)))
    assert replica.server.active_requests == 0
