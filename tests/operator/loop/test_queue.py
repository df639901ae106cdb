# ruff: noqa: ASYNC110
import asyncio
import math
import random
from collections import Counter

import pytest

from octavo_operator.loop.backoff import Backoff
from octavo_operator.loop.queue import WorkQueue
from octavo_operator.model.observed import Key

A, B = Key("default", "a"), Key("default", "b")


class Handler:
    """Counts its calls and holds each until it is let go."""

    def __init__(self, delay: float = math.inf) -> None:
        self.calls: Counter[Key] = Counter()
        self.running: Counter[Key] = Counter()
        self.delay = delay
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, key: Key) -> float:
        self.calls[key] += 1
        self.running[key] += 1
        assert self.running[key] == 1, "two workers on one key"
        await self.gate.wait()
        self.running[key] -= 1
        return self.delay


async def settle(rounds: int = 20) -> None:
    for _ in range(rounds):
        await asyncio.sleep(0)


@pytest.fixture
async def start():
    tasks = []

    def start(queue: WorkQueue) -> WorkQueue:
        tasks.append(asyncio.create_task(queue.run()))
        return queue

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_key_added_often_is_worked_on_once(start):
    handler = Handler()
    queue = WorkQueue(handler)
    for _ in range(100):
        queue.add(A)
    queue.add(B)
    assert len(queue) == 2
    start(queue)
    await settle()
    assert handler.calls == {A: 1, B: 1}
    assert len(queue) == 0


async def test_a_key_added_during_its_work_runs_again_on_one_worker(start):
    handler = Handler()
    handler.gate.clear()
    queue = start(WorkQueue(handler, workers=4))
    queue.add(A)
    await settle()
    for _ in range(5):
        queue.add(A)
    await settle()
    assert handler.calls[A] == 1
    handler.gate.set()
    await settle()
    assert handler.calls[A] == 2


async def test_a_busy_key_does_not_hold_up_others(start):
    handler = Handler()
    handler.gate.clear()
    queue = start(WorkQueue(handler, workers=2))
    queue.add(A)
    await settle()
    queue.add(A)
    queue.add(B)
    await settle()
    assert handler.calls == {A: 1, B: 1}


async def test_the_handler_says_when_it_looks_again_and_an_event_comes_earlier(start):
    handler = Handler(delay=0.02)
    queue = start(WorkQueue(handler))
    queue.add(A)
    while handler.calls[A] < 3:
        await asyncio.sleep(0.005)
    handler.delay = 3600
    while not (A in queue and queue.lag() == 0):
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    before = handler.calls[A]
    queue.add(A)
    await settle()
    assert handler.calls[A] == before + 1
    handler.delay = math.inf
    queue.add(A)
    await settle()
    assert A not in queue


async def test_a_later_time_does_not_put_off_an_earlier_one(start):
    handler = Handler()
    queue = WorkQueue(handler)
    queue.add(A, 0)
    queue.add(A, 3600)
    start(queue)
    await settle()
    assert handler.calls[A] == 1
    assert A not in queue


async def test_a_handler_that_raises_is_tried_again_and_others_go_on(start):
    calls: Counter[Key] = Counter()

    async def handler(key: Key) -> float:
        calls[key] += 1
        if key == A and calls[A] < 4:
            raise RuntimeError("a bug")
        return math.inf

    queue = start(WorkQueue(handler, workers=1, backoff=Backoff(base=0.001)))
    queue.add(A)
    queue.add(B)
    while calls[A] < 4:
        await asyncio.sleep(0.001)
    assert calls[B] == 1


async def test_a_handler_that_hangs_is_given_up_and_tried_again(start):
    calls = 0

    async def handler(key: Key) -> float:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.Event().wait()
        return math.inf

    queue = start(WorkQueue(handler, workers=1, limit_s=0.01, backoff=Backoff(base=0.001)))
    queue.add(A)
    while calls < 2:
        await asyncio.sleep(0.001)


async def test_lag_is_the_age_of_what_runs_or_waits_longest():
    now = 0.0
    queue = WorkQueue(Handler(), now=lambda: now)
    queue.add(A)
    queue.add(B, 30)
    now = 25.0
    assert queue.lag() == 25
    assert len(queue) == 1


@pytest.mark.parametrize("seed", range(3))
async def test_random_adds_lose_no_key_and_never_run_one_twice_at_a_time(start, seed):
    rng = random.Random(seed)
    keys = [Key("default", f"k{number}") for number in range(20)]
    wanted: dict[Key, int] = dict.fromkeys(keys, 0)
    seen: dict[Key, int] = dict.fromkeys(keys, 0)
    running: set[Key] = set()

    async def handler(key: Key) -> float:
        assert key not in running
        running.add(key)
        seen[key] = wanted[key]
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        running.remove(key)
        if rng.random() < 0.1:
            raise RuntimeError("a bug")
        return rng.choice([math.inf, 0.001, 3600])

    queue = start(WorkQueue(handler, workers=3, backoff=Backoff(base=0.0001, cap=0.001)))
    for _ in range(2000):
        key = rng.choice(keys)
        wanted[key] += 1
        queue.add(key, rng.choice([0, 0, 0.0005]))
        if rng.random() < 0.3:
            await asyncio.sleep(0)
    while seen != wanted:
        await asyncio.sleep(0.001)


def test_backoff_grows_to_its_cap_with_full_jitter_and_starts_over():
    backoff = Backoff(base=1, cap=300, rng=random.Random(1))
    draws = [backoff.next(A) for _ in range(200)]
    assert all(draw <= min(300, 2 ** (number + 1)) for number, draw in enumerate(draws))
    assert max(draws) > 200
    assert min(draws[20:]) < 60
    backoff.reset(A)
    assert backoff.next(A) <= 2
    assert backoff.failures(A) == 1
