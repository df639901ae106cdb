import asyncio
import random

import pytest

from octavo_api.errors import Draining, QueueFull
from octavo_router.fleet.admission import Admission


async def turns(number=3):
    for _ in range(number):
        await asyncio.sleep(0)


def waiter(admission, priority=0, now=0.0):
    return asyncio.create_task(admission.acquire(priority, now))


async def test_up_to_the_bound_no_request_waits():
    admission = Admission(max_inflight=2, max_queued=0)
    await admission.acquire(0, 0.0)
    await admission.acquire(0, 0.0)
    assert admission.inflight == 2
    with pytest.raises(QueueFull, match="2 requests are running and 0 waiting"):
        await admission.acquire(0, 0.0)


async def test_lower_priority_goes_first_and_equals_in_order():
    admission = Admission(max_inflight=1, max_queued=10)
    await admission.acquire(0, 0.0)
    order = []

    async def wait(name, priority):
        await admission.acquire(priority, 0.0)
        order.append(name)

    tasks = []
    for name, priority in (("late", 5), ("first", 0), ("second", 0), ("urgent", -1)):
        tasks.append(asyncio.create_task(wait(name, priority)))
        await turns()
    for _ in tasks:
        admission.release(0.0)
        await turns()
    assert order == ["urgent", "first", "second", "late"]


async def test_a_cancelled_waiter_leaves_no_trace():
    admission = Admission(max_inflight=1, max_queued=1)
    await admission.acquire(0, 0.0)
    task = waiter(admission)
    await turns()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert admission.queued == 0
    admission.release(0.0)
    assert admission.inflight == 0
    await admission.acquire(0, 0.0)


async def test_a_waiter_cancelled_at_its_admission_passes_its_place_on():
    admission = Admission(max_inflight=1, max_queued=2)
    await admission.acquire(0, 0.0)
    first, second = waiter(admission), waiter(admission)
    await turns()
    admission.release(0.0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await second
    assert (admission.inflight, admission.queued) == (1, 0)


async def test_cancelled_waiters_do_not_pile_up():
    admission = Admission(max_inflight=1, max_queued=4)
    await admission.acquire(0, 0.0)
    for _ in range(500):
        task = waiter(admission)
        await turns(1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert len(admission._waiting) < 50
    assert admission.queued == 0


async def test_retry_after_is_predicted_from_how_fast_requests_end():
    admission = Admission(max_inflight=1, max_queued=8)
    assert admission.retry_after_s(0.0) == 1.0
    for second in range(10):
        await admission.acquire(0, 0.0)
        admission.release(second * 2.0)
    await admission.acquire(0, 0.0)
    waiters = [waiter(admission) for _ in range(8)]
    await turns()
    with pytest.raises(QueueFull) as raised:
        await admission.acquire(0, 20.0)
    assert raised.value.retry_after_s == 18.0
    admission.reject_waiting(Draining("bye"))
    results = await asyncio.gather(*waiters, return_exceptions=True)
    assert all(isinstance(each, Draining) for each in results)
    assert admission.queued == 0


async def test_a_larger_bound_admits_at_once_and_a_smaller_one_waits_for_ends():
    admission = Admission(max_inflight=1, max_queued=8)
    await admission.acquire(0, 0.0)
    tasks = [waiter(admission) for _ in range(3)]
    await turns()
    admission.reconfigure(max_inflight=3, max_queued=8)
    await turns()
    assert [task.done() for task in tasks] == [True, True, False]
    admission.reconfigure(max_inflight=1, max_queued=8)
    admission.release(0.0)
    admission.release(0.0)
    await turns()
    assert not tasks[2].done()
    admission.release(0.0)
    await tasks[2]


@pytest.mark.parametrize("seed", range(11))
async def test_bounds_hold_and_nothing_leaks_under_random_use(seed):
    rng = random.Random(seed)
    limit = rng.randint(1, 4)
    admission = Admission(max_inflight=limit, max_queued=5)
    running = 0

    async def use():
        nonlocal running
        try:
            await admission.acquire(rng.randint(0, 2), 0.0)
        except QueueFull:
            return
        running += 1
        try:
            assert running <= limit
            await turns(rng.randint(0, 5))
        finally:
            running -= 1
            admission.release(0.0)

    tasks = []
    for _ in range(200):
        tasks.append(asyncio.create_task(use()))
        await turns(rng.randint(0, 2))
        if rng.random() < 0.3:
            rng.choice(tasks).cancel()
        assert admission.queued <= 5
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert not [each for each in results if each is not None and not isinstance(each, asyncio.CancelledError)]
    assert (admission.inflight, admission.queued, running) == (0, 0, 0)
