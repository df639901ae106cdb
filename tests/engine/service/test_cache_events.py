import asyncio
import random

import pytest

PROMPT = list(range(10, 30))


async def test_a_snapshot_and_the_steps_after_it_give_the_replicas_cache(serve, attach):
    replica = await serve()
    gateway = await attach(replica)
    await gateway.finished(await gateway.submit(1, PROMPT, max_tokens=8))
    late = await attach(replica, name="late")
    await late.resync()
    assert len(late.mirror) == 27 // 4
    await gateway.finished(await gateway.submit(2, [1, *PROMPT], max_tokens=8))
    await late.until(lambda: len(late.mirror) == 27 // 4 + 28 // 4)


async def test_a_snapshot_taken_between_steps_of_a_running_request_fits(serve, attach):
    replica = await serve(step_time_s=0.002)
    gateway = await attach(replica)
    received = await gateway.submit(1, PROMPT, max_tokens=400)
    while not received.done:
        await gateway.resync()
    assert gateway.snapshots > 10


async def test_a_reset_cache_is_cleared_at_the_gateway_too(serve, attach):
    replica = await serve()
    gateway = await attach(replica)
    await gateway.resync()
    await gateway.finished(await gateway.submit(1, PROMPT, max_tokens=8))
    await gateway.until(lambda: gateway.mirror)
    replica.server.reset_prefix_cache()
    await gateway.until(lambda: not gateway.mirror)
    received = await gateway.submit(2, PROMPT, max_tokens=8)
    await gateway.finished(received)
    assert received.cached_tokens == 0


@pytest.mark.parametrize("steps_in_flight", [1, 2])
async def test_mirrors_equal_the_cache_at_every_step_of_a_random_load(serve, attach, steps_in_flight):
    """Every Step's digest and count are checked by the gateway; every snapshot against the mirror before it."""
    seed = 0
    print(f"seed {seed}")
    choose = random.Random(seed)
    replica = await serve(num_blocks=96, max_num_seqs=8, max_model_len=200, steps_in_flight=steps_in_flight)
    gateways = [await attach(replica, name=f"gateway-{i}") for i in range(2)]
    for gateway in gateways:
        await gateway.resync()
    prefixes = [[choose.randrange(1000) for _ in range(60)] for _ in range(4)]

    async def run(gateway) -> None:
        requests = []
        for request_id in range(60):
            prompt = [*choose.choice(prefixes)[: choose.randrange(1, 60)], request_id]
            received = await gateway.submit(
                request_id,
                prompt,
                max_tokens=choose.randrange(1, 40),
                n=choose.choice([1, 1, 3]),
                salt=choose.choice("ab"),
            )
            requests.append(received)
            if choose.random() < 0.2:
                await gateway.abort(choose.randrange(request_id + 1), choose.choice([None, 0, 1]))
            if choose.random() < 0.1:
                await gateway.resync()
            if choose.random() < 0.3:
                await gateway.finished(choose.choice(requests))
        await gateway.finished(*requests)

    await asyncio.gather(*(run(gateway) for gateway in gateways))
    assert gateways[0].step.load.evicted_blocks_total > 0
    last_step = max(gateway.step.load.steps_total for gateway in gateways)
    for gateway in gateways:
        await gateway.until(lambda gateway=gateway: gateway.step.load.steps_total >= last_step)
        await gateway.resync()
        mirror, snapshot = gateway.snapshot_before
        assert mirror == snapshot
        assert mirror
        assert gateway.events_lost == 0
    assert gateways[0].mirror == gateways[1].mirror
