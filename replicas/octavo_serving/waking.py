"""Start of a first engine while requests wait for one."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

PAUSE_S = 0.5
"""Seconds between an answered or failed call and the next one."""


class Waker:
    """Holder of one call while an engine is required, however many requests wait.

    Serve counts a call that waits for a replica, and starts a replica. If the call is answered while requests still
    wait, its replica accepts no requests yet, or drains. So the next call follows.
    """

    def __init__(self, call: Callable[[], Awaitable[None]], *, pause_s: float = PAUSE_S) -> None:
        self._call = call
        self._pause_s = pause_s
        self._calling: asyncio.Task[None] | None = None

    def wanted(self, wanted: bool) -> None:
        if wanted and self._calling is None:
            self._calling = asyncio.create_task(self._keep_calling(), name="wake an engine")
        elif not wanted:
            self.close()

    def close(self) -> None:
        if self._calling is not None:
            self._calling.cancel()
            self._calling = None

    async def _keep_calling(self) -> None:
        logger.info("requests wait; requesting a first engine from Serve")
        # This check is needed: a call that ends by itself during its cancellation hides the cancellation.
        while self._calling is asyncio.current_task():
            try:
                await self._call()
            except Exception as error:
                if self._calling is asyncio.current_task():
                    logger.warning("cannot request an engine from Serve: %s", error)
            await asyncio.sleep(self._pause_s)
