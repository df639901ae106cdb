"""The one way in which tests wait for a condition: poll it until it holds, and name it if it never does."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
What = str | Callable[[], str]
"""Name of the condition; a function adds the situation at the end of the time."""


def eventually(what: What, condition: Callable[[], T], timeout_s: float = 60, every_s: float = 0.05) -> T:
    """Return the first true value of ``condition``; raise AssertionError with ``what`` after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while True:
        if value := condition():
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not in {timeout_s:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(every_s)


async def eventually_async(
    what: What, condition: Callable[[], T | Awaitable[T]], timeout_s: float = 20, every_s: float = 0.01
) -> T:
    """Return the first true value of ``condition``, which may be a coroutine function, without blocking the loop."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not in {timeout_s:g} s: {what if isinstance(what, str) else what()}")
        await asyncio.sleep(every_s)
