"""kopf in a thread and an event loop of its own.

When kopf ends it cancels every task of its loop that began after it, and it takes signals for itself: neither may
reach the rest of the operator.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial

import kopf

STOP_S = 5.0
"""Longest wait for kopf to end; its thread is left to die with the process then."""


async def run_kopf(
    registry: kopf.OperatorRegistry,
    settings: kopf.OperatorSettings,
    namespaces: Sequence[str],
    started: Callable[[], None],
) -> None:
    """Watches until it is cancelled; raises what ended kopf. ``started`` is called in this loop; none is for all."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    begun = threading.Event()
    stop: Callable[[], object] | None = None

    async def watch() -> None:
        nonlocal stop
        inner, stop_flag, ready_flag = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        stop = partial(inner.call_soon_threadsafe, stop_flag.set)
        begun.set()
        report = asyncio.create_task(_then(ready_flag, lambda: loop.call_soon_threadsafe(started)))
        try:
            await kopf.operator(
                registry=registry,
                settings=settings,
                standalone=True,
                clusterwide=not namespaces,
                namespaces=namespaces,
                stop_flag=stop_flag,
                ready_flag=ready_flag,
            )
        finally:
            report.cancel()

    def body() -> None:
        error: BaseException | None = None
        try:
            asyncio.run(watch())
        except BaseException as caught:
            error = caught
        _tell(loop, ended, error)

    threading.Thread(target=body, name="kopf", daemon=True).start()
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        if not ended.done():
            await asyncio.to_thread(begun.wait, STOP_S)
            if stop is not None:
                _quietly(stop)
            await asyncio.wait([ended], timeout=STOP_S)
            if ended.done():
                ended.exception()  # looked at: it was stopping anyway
        raise


async def _then(flag: asyncio.Event, call: Callable[[], object]) -> None:
    await flag.wait()
    call()


def _tell(loop: asyncio.AbstractEventLoop, ended: "asyncio.Future[None]", error: BaseException | None) -> None:
    def tell() -> None:
        if ended.done():
            return
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error if isinstance(error, Exception) else RuntimeError(f"kopf ended: {error!r}"))

    _quietly(lambda: loop.call_soon_threadsafe(tell))


def _quietly(call: Callable[[], object]) -> None:
    """The other loop may have closed already."""
    try:
        call()
    except RuntimeError:
        return
