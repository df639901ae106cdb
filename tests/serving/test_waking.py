import asyncio

import pytest

from octavo_serving.waking import Waker


class Calls:
    """Calls of an engine's handle, which a test answers."""

    def __init__(self) -> None:
        self.made = 0
        self.under_way = 0
        self.answer = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> None:
        self.made += 1
        self.under_way += 1
        try:
            await self.answer.wait()
            if self.error:
                raise self.error
        finally:
            self.under_way -= 1


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_one_call_waits_however_often_an_engine_is_wanted() -> None:
    calls = Calls()
    waker = Waker(calls)
    for _ in range(3):
        waker.wanted(True)
    await turns()
    assert (calls.made, calls.under_way) == (1, 1)
    waker.close()
    await turns()
    assert calls.under_way == 0


async def test_it_is_taken_back_when_nobody_waits_and_made_again_for_the_next() -> None:
    calls = Calls()
    waker = Waker(calls)
    waker.wanted(True)
    await turns()
    waker.wanted(False)
    await turns()
    assert (calls.made, calls.under_way) == (1, 0)
    waker.wanted(True)
    await turns()
    assert (calls.made, calls.under_way) == (2, 1)
    waker.close()


async def test_one_that_is_taken_back_and_ends_in_an_error_is_the_last() -> None:
    calls = 0

    async def call() -> None:
        nonlocal calls
        calls += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("the controller has died") from None

    waker = Waker(call, pause_s=0)
    waker.wanted(True)
    await turns()
    waker.wanted(False)
    await turns(20)
    assert calls == 1
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "wake an engine"]


@pytest.mark.parametrize("error", [None, RuntimeError("the replica has died")])
async def test_an_answer_that_brought_no_engine_is_followed_by_another_call(error: Exception | None) -> None:
    calls = Calls()
    calls.answer.set()
    calls.error = error
    waker = Waker(calls, pause_s=0)
    waker.wanted(True)
    async with asyncio.timeout(5):
        while calls.made < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
    waker.close()
    await turns()
    made = calls.made
    await turns()
    assert calls.made == made
