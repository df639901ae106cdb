"""Answers that are shown whole: nobody has seen any of one whose replica went away, so it is made again."""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from octavo_api.errors import ReplicaLost
from octavo_router.request import MAX_TRIES

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")


async def whole(make: Callable[[], Awaitable[Answer]], request_id: str) -> Answer:
    """Returns the first answer that ``make`` completes, of at most ``MAX_TRIES``; raises what the last one raises.

    A stream has its first tokens shown: it cannot be made again.
    """
    for _ in range(MAX_TRIES - 1):
        try:
            return await make()
        except ReplicaLost as lost:
            logger.info("made again: %s", lost.message, extra={"request_id": request_id})
    return await make()
