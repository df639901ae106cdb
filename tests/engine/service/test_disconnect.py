import pytest

from octavo_testing.engine.replica import continuation

PROMPT = list(range(10, 30))
# A request that is not aborted runs for 20 s and more. A request that has ended earlier was aborted.
STEP_S = 0.05
WITHIN_S = 10.0


def holds_nothing(gateway) -> bool:
    load = gateway.step.load
    return load.kv_blocks_pinned == load.num_requests_running == load.num_requests_waiting == 0


async def leave(leaver, observer) -> None:
    await observer.until(lambda: not holds_nothing(observer))
    leaver.disconnect()


async def gone_soon(replica, observer) -> None:
    """Waits for a Step of the observer that shows that nothing is left of the gateway that went away."""
    await observer.until(lambda: holds_nothing(observer), timeout_s=WITHIN_S)
    assert replica.server.active_requests == 0


@pytest.fixture
def attach_two(attach):
    async def start(replica):
        observer = await attach(replica, name="observer")
        await observer.until(lambda: observer.seq)
        return await attach(replica, name="leaver"), observer

    return start


async def test_while_decoding(serve, attach_two):
    replica = await serve(step_time_s=STEP_S)
    leaver, observer = await attach_two(replica)
    received = await leaver.submit(1, PROMPT, max_tokens=400)
    await leaver.until(lambda: len(received.tokens[0]) > 3)
    await leave(leaver, observer)
    await gone_soon(replica, observer)


async def test_before_the_first_step(serve, attach_two):
    replica = await serve(stepped=True)
    leaver, observer = await attach_two(replica)
    await leaver.submit(1, PROMPT, max_tokens=400)
    await replica.runner.at_gate()
    leaver.disconnect()
    await observer.until(lambda: replica.server.active_requests == 0)
    replica.runner.free()
    await gone_soon(replica, observer)


async def test_while_queued(serve, attach_two):
    replica = await serve(stepped=True, max_num_seqs=1)
    leaver, observer = await attach_two(replica)
    other = await observer.submit(1, PROMPT, max_tokens=400)
    await replica.runner.allow(2)
    for request_id in range(5):
        await leaver.submit(request_id, PROMPT, max_tokens=400)
    await observer.until(lambda: replica.server.active_requests == 6)
    await replica.runner.allow(2)
    await observer.until(lambda: observer.step.load.num_requests_waiting == 5)
    leaver.disconnect()
    # Each step takes in the aborts that have arrived; the gate keeps the running request from ending first.
    await observer.until_steps_reach(replica.runner, lambda: not observer.step.load.num_requests_waiting)
    assert len(other.tokens[0]) < 100
    replica.runner.free()
    await observer.finished(other)


async def test_between_two_chunks_of_a_prompt(serve, attach_two):
    replica = await serve(stepped=True, long_prefill_token_threshold=4)
    leaver, observer = await attach_two(replica)
    await leaver.submit(1, PROMPT * 10, max_tokens=5)
    await replica.runner.allow(3)
    await replica.runner.at_gate()
    await leave(leaver, observer)
    assert observer.step.load.running_prefill_tokens
    replica.runner.free()
    await gone_soon(replica, observer)


async def test_while_preempted(serve, attach_two):
    replica = await serve(stepped=True, num_blocks=32, max_model_len=128)
    leaver, observer = await attach_two(replica)
    for request_id in range(4):
        await leaver.submit(request_id, [request_id, *PROMPT], max_tokens=80)
    await observer.until_steps_reach(
        replica.runner, lambda: observer.step.load.num_preemptions_total and observer.step.load.num_requests_waiting
    )
    leaver.disconnect()
    replica.runner.free()
    await gone_soon(replica, observer)


async def test_with_several_choices(serve, attach_two, caplog):
    caplog.set_level("INFO")
    replica = await serve(step_time_s=STEP_S)
    leaver, observer = await attach_two(replica)
    received = await leaver.submit(1, PROMPT, n=4, max_tokens=400)
    await leaver.until(lambda: len(received.tokens[3]) > 3)
    await leave(leaver, observer)
    await gone_soon(replica, observer)
    assert "request ended: its gateway has disconnected" in caplog.messages


async def test_with_two_steps_in_flight(serve, attach_two):
    replica = await serve(step_time_s=STEP_S, steps_in_flight=2)
    leaver, observer = await attach_two(replica)
    received = await leaver.submit(1, PROMPT, max_tokens=400)
    await leaver.until(lambda: len(received.tokens[0]) > 3)
    await leave(leaver, observer)
    await gone_soon(replica, observer)


async def test_closing_the_sending_side_counts_as_leaving(serve, attach_two):
    replica = await serve(step_time_s=STEP_S)
    leaver, observer = await attach_two(replica)
    received = await leaver.submit(1, PROMPT, max_tokens=400)
    await leaver.until(lambda: received.tokens[0])
    await observer.until(lambda: not holds_nothing(observer))
    await leaver.call.done_writing()
    await gone_soon(replica, observer)


async def test_the_requests_of_others_go_on(serve, attach_two):
    replica = await serve(step_time_s=0.001)
    leaver, other = await attach_two(replica)
    leaving = await leaver.submit(1, PROMPT, max_tokens=400)
    staying = await other.submit(1, PROMPT, max_tokens=100)
    await leaver.until(lambda: leaving.tokens[0])
    leaver.disconnect()
    await other.finished(staying)
    assert staying.tokens[0] == continuation(PROMPT, 100)
