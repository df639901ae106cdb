"""Several calls as one stream: each is started, read and closed by itself, so that none waits for another's reader."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from octavo_router.call import Call
from octavo_router.choice import Delta
from octavo_router.gateway import Gateway, Generation

Batch = tuple[int, Generation, list[Delta]]


async def run(gateway: Gateway, calls: Sequence[Call]) -> AsyncGenerator[Batch]:
    """Yields batches of deltas with the number of their call. Close it (``aclosing``): that aborts what runs.

    Raises the first ``RequestError`` of any call; the other calls are aborted then.
    """
    if len(calls) > 1:
        async with _closing(gateway, calls) as queue:
            for _ in calls:
                while (item := await queue.get()) is not None:
                    if isinstance(item, Exception):
                        raise item
                    yield item
        return
    async with await gateway.start(calls[0]) as generation:
        async for deltas in generation:
            yield 0, generation, deltas


class _closing:
    """Runs one task for each call; they put batches, then None or the exception that ended them, into a queue."""

    def __init__(self, gateway: Gateway, calls: Sequence[Call]) -> None:
        self._queue: asyncio.Queue[Batch | Exception | None] = asyncio.Queue()
        self._gateway = gateway
        self._tasks = [asyncio.create_task(self._read(number, call)) for number, call in enumerate(calls)]

    async def _read(self, number: int, call: Call) -> None:
        try:
            async with await self._gateway.start(call) as generation:
                async for deltas in generation:
                    self._queue.put_nowait((number, generation, deltas))
        except Exception as error:
            self._queue.put_nowait(error)
        else:
            self._queue.put_nowait(None)

    async def __aenter__(self) -> "asyncio.Queue[Batch | Exception | None]":
        return self._queue

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
