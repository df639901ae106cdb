"""The pool against real engine services: core, scheduler, prefix cache and protocol; only the tokens are made up."""

import asyncio
import contextlib
import random
from functools import reduce
from operator import xor

import pytest

from octavo_api.blocks import low64
from octavo_api.errors import RequestError
from octavo_api.settings import EngineSettings
from octavo_engine.service.server import EngineServer
from octavo_engine.startup.synthetic import load_synthetic, next_token
from octavo_router.fleet.replica_status import ReplicaAddress
from octavo_router.routing.route import Reason

VOCAB = 1000
SECRET = "between us"


def expected(prompt, number, choice=0):
    tokens = list(prompt)
    for _ in range(number):
        tokens.append(next_token(tokens[-1], len(tokens) - 1, choice, VOCAB))
    return tokens[len(prompt) :]


@pytest.fixture
async def engines(fleet):
    servers = {}

    async def start(*names, num_blocks=256, step_time_s=0.001, token_time_s=2e-6, **settings):
        for name in names:
            loaded = load_synthetic(
                f"synthetic://{VOCAB}",
                EngineSettings(**settings),
                num_blocks=num_blocks,
                step_time_s=step_time_s,
                token_time_s=token_time_s,
            )
            servers[name] = await EngineServer.start(loaded, replica=name, secret=SECRET)
        await fleet.start(secret=SECRET)
        fleet.pool.update_replicas(ReplicaAddress(name, "127.0.0.1", server.port) for name, server in servers.items())
        await fleet.until(lambda: all(each.state == "live" for each in fleet.pool.replicas()))
        return servers

    yield start
    await fleet.pool.close()
    await asyncio.gather(*(server.stop() for server in servers.values()))


def index_equals(fleet, server):
    """Return True if the index holds the same keys for the replica as its engine's cache."""
    replica = fleet.pool.members[server.replica]
    held = [low64(block_hash) for block_hash in server._engine._core.snapshot()]
    digest = fleet.pool.members.index.digest(replica.slot)
    count = fleet.pool.members.index.num_held(replica.slot)
    return (digest.xor, digest.sum, count) == (reduce(xor, held, 0), sum(held) % 2**64, len(held))


async def test_choices_equal_the_engine_and_the_second_turn_hits(fleet, engines):
    await engines("a", "b", "c", token_time_s=2e-4)
    prompt = [number % VOCAB for number in range(200)]
    tokens, first = await fleet.ask(fleet.request(prompt, n=2, max_tokens=20))
    assert tokens == {choice: expected(prompt, 20, choice) for choice in range(2)}
    assert first.reason is Reason.COLD
    await asyncio.sleep(0.3)
    tokens, second = await fleet.ask(fleet.request([*prompt, 5, 6, 7], max_tokens=5))
    assert tokens == {0: expected([*prompt, 5, 6, 7], 5)}
    assert (second.replica, second.reason, second.predicted_cached_tokens) == (first.replica, Reason.HIT, 192)
    assert fleet.recorder.predictions == [(0, 0), (192, 192)]


async def test_the_index_follows_small_caches_that_evict_all_the_time(fleet, engines):
    servers = await engines("a", "b", num_blocks=40)
    rng = random.Random(11)
    prompts = [[rng.randrange(VOCAB) for _ in range(rng.randint(20, 300))] for _ in range(12)]

    async def client():
        for _ in range(8):
            prompt = rng.choice(prompts)[: rng.randint(17, 300)]
            tokens, _ = await fleet.ask(fleet.request(prompt, max_tokens=6))
            assert tokens == {0: expected(prompt, 6)}

    await asyncio.gather(*(client() for _ in range(10)))
    for server in servers.values():
        await fleet.until(lambda server=server: index_equals(fleet, server))
    assert set(fleet.recorder.resyncs) == {"connected"}
    assert fleet.pool.members.index.path_gaps == 0
    over = [predicted - actual for predicted, actual in fleet.recorder.predictions]
    assert sum(over) / len(over) < 150


async def test_aborts_reach_the_engine(fleet, engines):
    servers = await engines("a", step_time_s=0.01)
    stream = await fleet.pool.open(fleet.request(50, max_tokens=900))
    await anext(stream)
    await stream.aclose()
    await fleet.until(lambda: servers["a"].active_requests == 0, timeout=1)


async def test_a_draining_engine_is_avoided_and_a_stopped_one_replaced(fleet, engines):
    servers = await engines("a", "b", step_time_s=0.005)
    streams = [await fleet.pool.open(fleet.request(40 + number, max_tokens=30)) for number in range(6)]
    reading = [asyncio.create_task(fleet.read(stream)) for stream in streams]
    await asyncio.sleep(0.05)
    drained = asyncio.create_task(servers["a"].drain(10))
    await fleet.until(lambda: fleet.pool.replicas()[0].state == "draining")
    assert {(await fleet.ask())[1].replica for _ in range(4)} == {"b"}
    assert await drained
    for number, task in enumerate(reading):
        assert (await task)[0] == {0: expected(range(40 + number), 30)}
    await servers["a"].stop()
    assert (await fleet.ask())[1].replica == "b"


async def test_replaced_engines_under_load_lose_no_request_silently(fleet, engines):
    servers = await engines("a", "b", step_time_s=0.002)
    rng = random.Random(4)
    answered, failed = [], []

    async def client():
        while len(answered) + len(failed) < 150:
            prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 100))]
            stream = None
            try:
                stream = await fleet.pool.open(fleet.request(prompt, max_tokens=10))
                async with contextlib.aclosing(stream):
                    tokens = [token async for outputs in stream for output in outputs for token in output.token_ids]
                assert tokens == expected(prompt, 10)
                answered.append(stream.route.replica)
            except RequestError as error:
                failed.append(type(error).__name__)

    clients = [asyncio.create_task(client()) for _ in range(8)]
    for _ in range(2):
        await asyncio.sleep(0.1)
        old = servers["a"]
        loaded = load_synthetic(f"synthetic://{VOCAB}", EngineSettings(), num_blocks=256, step_time_s=0.002)
        servers["a"] = await EngineServer.start(loaded, replica="a", secret=SECRET)
        await old.stop()
        fleet.pool.update_replicas(ReplicaAddress(name, "127.0.0.1", each.port) for name, each in servers.items())
    await asyncio.gather(*clients)
    assert set(failed) <= {"Draining", "ReplicaLost", "NoReplica"}
    assert len(answered) > 100
    await fleet.until(fleet.at_rest)
