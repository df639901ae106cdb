"""Several calls as one stream.

Each call starts, is read and closes separately, so no call waits for another's reader.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Self

from octavo_router.answers.call import Call
from octavo_router.answers.gateway import Gateway
from octavo_router.answers.generation import Batch


@asynccontextmanager
async def open_generations(gateway: Gateway, calls: Sequence[Call]) -> AsyncIterator[AsyncIterator[Batch]]:
    """Send the calls and yield an iterator over their batches. Abort the calls that still run at the end.

    The iterator raises the first ``RequestError`` of any call.
    """
    if len(calls) == 1:
        async with await gateway.start_generation(calls[0]) as generation:
            yield generation
        return
    merged = _Merged(gateway, calls)
    try:
        yield merged
    finally:
        await merged.aclose()


class _Merged:
    """One task for each call. A task puts batches into a queue, then None or the exception that ended it."""

    def __init__(self, gateway: Gateway, calls: Sequence[Call]) -> None:
        self._queue: asyncio.Queue[Batch | Exception | None] = asyncio.Queue()
        self._gateway = gateway
        self._running = len(calls)
        self._tasks = [asyncio.create_task(self._read(call)) for call in calls]

    async def _read(self, call: Call) -> None:
        try:
            async with await self._gateway.start_generation(call) as generation:
                async for batch in generation:
                    self._queue.put_nowait(batch)
        except Exception as error:
            self._queue.put_nowait(error)
        else:
            self._queue.put_nowait(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        while self._running:
            item = await self._queue.get()
            if isinstance(item, Exception):
                raise item
            if item is not None:
                return item
            self._running -= 1
        raise StopAsyncIteration

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
