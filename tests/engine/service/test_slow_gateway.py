"""A gateway that does not read is its own problem."""

import asyncio
import itertools
import time

import grpc
import pytest

from octavo_testing.engine.replica import continuation

PROMPT = list(range(10, 30))


async def flood(gateway, *, streams: int, tokens: int, first_id: int = 0):
    """Submits more than the connection's flow control lets through unread; its estimate of the wire may allow one."""
    return [await gateway.submit(first_id + i, [i, *PROMPT], max_tokens=tokens, logprobs=20) for i in range(streams)]


async def test_steps_go_on_and_every_token_arrives_in_the_end(serve, attach):
    replica = await serve(num_blocks=4096, max_num_seqs=64)
    slow, other = await attach(replica, name="slow", read=False), await attach(replica, name="other")
    flooded = await flood(slow, streams=16, tokens=100)
    # The other gateway sees the engine finish all of them, while nothing of it has been read.
    await other.until(lambda: other.step.load.generation_tokens_total == 16 * 100)
    received = await other.submit(1, PROMPT, max_tokens=100)
    await other.finished(received)
    assert received.tokens[0] == continuation(PROMPT, 100)
    steps = other.step.load.steps_total
    slow.start_reading()
    await slow.finished(*flooded)
    for number, request in enumerate(flooded):
        assert request.tokens[0] == continuation([number, *PROMPT], 100)
        assert len(request.logprobs[0]) == 100
    assert slow.seq < steps / 2, "what could not be sent was not put together"


async def test_lost_events_are_healed_by_a_snapshot(serve, attach):
    replica = await serve(
        num_blocks=16_500, block_size=1, max_model_len=8192, max_num_batched_tokens=8192, max_num_seqs=64
    )
    slow, other = await attach(replica, name="slow"), await attach(replica, name="other")
    await slow.resync()
    await slow.pause()
    for attempt in itertools.count():
        await flood(slow, streams=16, tokens=100, first_id=1000 * attempt)
        await other.until(lambda: replica.server.active_requests == 0)
        started = time.monotonic()
        # Each prompt stores thousands of blocks and evicts as many: more than the outbox keeps.
        for number in range(12):
            prompt = [20 * attempt + number] * 4000
            await other.finished(await other.submit(1000 * attempt + number, prompt, max_tokens=1))
        if replica.blocked_s("slow") > time.monotonic() - started:
            break
    slow.start_reading()
    await slow.until(lambda: slow.events_lost)
    await slow.resync()
    await other.finished(await other.submit(999, [5, 6, 7], max_tokens=5))
    seq = slow.seq
    await slow.until(lambda: slow.seq > seq + 1)
    assert slow.synced
    assert slow.mirror


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_gateway_that_takes_nothing_for_long_is_given_up(serve, attach, monkeypatch, caplog, leaves):
    monkeypatch.setattr("octavo_engine.service.server.BLOCKED_TIMEOUT_S", 1.0)
    replica = await serve(num_blocks=8192, block_size=16, max_model_len=2048, max_num_seqs=64, step_time_s=0.01)
    slow, other = await attach(replica, name="slow", read=False), await attach(replica, name="other")
    await flood(slow, streams=16, tokens=500)
    await other.until(lambda: other.step.load.generation_tokens_total)
    await other.until(lambda: replica.server.active_requests == 0)
    await other.until(lambda: other.step.load.num_requests_running == 0)
    assert other.step.load.generation_tokens_total < 16 * 500
    if leaves:
        slow.disconnect()
        await other.resync()
        await asyncio.sleep(0.2)
    else:
        slow.start_reading()
        assert await slow.ended() is grpc.StatusCode.ABORTED
    assert "Traceback" not in caplog.text
