"""Concurrent calls that fail together."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def gather_all(*calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """Return all results in order. The first failure cancels the rest, and is raised unchanged, in no group."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
