"""Thread and event loop of kopf, apart from the rest of the operator.

kopf treats every task of its loop, and signals, as its own. Neither may reach the rest of the operator. If one of its
watches fails, kopf may wait for the others for ever. The reason: a cancelled stream takes a cancelled pause for the end
of its work. So this module ends kopf's tasks, not ``kopf.operator``.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import kopf

STOP_S = 5.0
"""Maximum seconds for kopf's tasks to end. The remaining tasks then end with their loop."""
_POLL_S = 0.1


async def run_kopf(
    registry: kopf.OperatorRegistry,
    settings: kopf.OperatorSettings,
    namespaces: Sequence[str],
    started: Callable[[], None],
) -> None:
    """Watch ``namespaces``, all if empty, until cancelled; raise the error that ended kopf.

    ``started`` is called in this loop when kopf is ready.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    thread_started = threading.Event()
    stop: Callable[[], object] | None = None

    async def watch() -> None:
        nonlocal stop
        stop_flag, ready_flag = asyncio.Event(), asyncio.Event()
        stop = partial(asyncio.get_running_loop().call_soon_threadsafe, stop_flag.set)
        thread_started.set()
        stopped = asyncio.create_task(stop_flag.wait())
        ready = asyncio.create_task(_call_after(ready_flag, partial(loop.call_soon_threadsafe, started)), name="ready")
        tasks = await kopf.spawn_tasks(
            registry=registry,
            settings=settings,
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            ready_flag=ready_flag,
            # Used among peers only, and there are none. kopf would ask for the user's name, which an image may lack.
            identity=cast(Any, "octavo"),
        )
        done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        await _end_tasks()
        errors = [error for task in done - {stopped} if not task.cancelled() and (error := task.exception())]
        if errors:
            raise errors[0]

    def body() -> None:
        inner = asyncio.new_event_loop()
        error: BaseException | None = None
        try:
            inner.run_until_complete(watch())
            inner.run_until_complete(inner.shutdown_asyncgens())
        except BaseException as caught:
            error = caught
        finally:
            inner.close()
        thread_started.set()
        _report_end(loop, ended, error)

    threading.Thread(target=body, name="kopf", daemon=True).start()
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        if not ended.done():
            await asyncio.to_thread(thread_started.wait, STOP_S)
            if stop is not None:
                _ignore_closed_loop(stop)
            await asyncio.wait([ended], timeout=2 * STOP_S)
            if ended.done():
                ended.exception()  # looked at: it was stopping anyway
        raise


async def _call_after(flag: asyncio.Event, call: Callable[[], object]) -> None:
    await flag.wait()
    _ignore_closed_loop(call)


async def _end_tasks() -> None:
    """Cancel all other tasks of this loop until they are gone, for a few seconds.

    Pauses are left to their streams: a stream that is cancelled together with its pause continues.
    """
    for _ in range(int(STOP_S / _POLL_S)):
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if not left:
            return
        for task in left:
            if not task.get_name().startswith("pause-waiter"):
                task.cancel()
        await asyncio.wait(left, timeout=_POLL_S)


def _report_end(loop: asyncio.AbstractEventLoop, ended: "asyncio.Future[None]", error: BaseException | None) -> None:
    def set_result() -> None:
        if ended.done():
            return
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error if isinstance(error, Exception) else RuntimeError(f"kopf ended: {error!r}"))

    _ignore_closed_loop(partial(loop.call_soon_threadsafe, set_result))


def _ignore_closed_loop(call: Callable[[], object]) -> None:
    """Run ``call``; ignore that the other loop may have closed already."""
    try:
        call()
    except RuntimeError:
        return
