"""The engine thread: commands in, one ``EngineOutputs`` for each step out.

The core decides, the runner computes, and this thread joins the two. No outside event, such as a slow gateway, makes a
step wait. Commands come through a queue that the thread reads in each turn of its loop.
"""

import gc
import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from octavo_api.blocks import BlockHash, Digest
from octavo_api.errors import EngineFailure, RequestError
from octavo_api.finish_reason import FinishReason
from octavo_api.settings import EngineSettings
from octavo_engine.core.engine_core import EngineCore
from octavo_engine.core.kv.events import CacheEvent
from octavo_engine.core.plan import StepOutput, StepPlan
from octavo_engine.core.request import NewRequest, RequestOutput
from octavo_engine.core.stats import CoreLoad
from octavo_engine.rates import Measurements, StepRates

logger = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILURES = 3
_IDLE_WAIT_S = 1.0
_STALLED_WAIT_S = 0.01
COMMANDS_S = 0.002
"""Seconds of a turn that go to commands while requests run. The rest of the commands waits for the next turn."""


class Runner(Protocol):
    """Executor of plans, in the order in which the core made them."""

    def execute(self, plan: StepPlan) -> StepOutput: ...


@dataclass(frozen=True, slots=True)
class EngineOutputs:
    """Changes since the last outputs, and the state after them.

    ``snapshot`` holds all cached blocks if ``snapshot_for`` names requesters. Later events apply on top of it.
    """

    outputs: list[RequestOutput]
    events: list[CacheEvent]
    load: CoreLoad
    measurements: Measurements
    digest: Digest
    num_cached_blocks: int
    snapshot: list[BlockHash]
    snapshot_for: tuple[Hashable, ...]


class Engine:
    """A thread that runs ``core`` and ``runner``. Any thread may call every method.

    ``on_outputs`` and ``on_failure`` must not block. The engine's thread calls them, except for the first outputs,
    which ``start`` sends. A runner that raises ends the requests of its step and of the plans behind it.

    The engine ends if the runner raises ``MAX_CONSECUTIVE_FAILURES`` times in a row, or if the core raises at all. Then
    the thread calls ``on_failure`` once, and ``heartbeat_age_s`` is infinite from then on.
    """

    def __init__(
        self,
        core: EngineCore,
        runner: Runner,
        *,
        on_outputs: Callable[[EngineOutputs], None],
        on_failure: Callable[[Exception], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._core = core
        self._runner = runner
        self._on_outputs = on_outputs
        self._on_failure = on_failure
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._plans: deque[StepPlan] = deque()
        self._outputs: list[RequestOutput] = []
        self._snapshot_for: list[Hashable] = []
        self._rates = StepRates()
        self._failures = 0
        self._failure: Exception | None = None
        self._stopping = False
        self._turned_at = clock()
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)

    def start(self) -> None:
        self._send_outputs()
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """End the thread after its current step; return True if it has ended within ``timeout_s`` seconds."""
        self._commands.put(self._stop)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def failure(self) -> Exception | None:
        """Error that ended the engine, or None."""
        return self._failure

    def heartbeat_age_s(self) -> float:
        """Return the seconds since the thread last began a turn: about the time of a step, infinite after its end."""
        if self._failure is not None or not self._thread.is_alive():
            return math.inf
        return self.clock() - self._turned_at

    def submit(self, request: NewRequest) -> None:
        """Add a request. If the core rejects it, an output has the error."""
        self._commands.put(partial(self._submit, request))

    def abort(self, request_id: Hashable, choice: int | None = None) -> None:
        """End a request, or one choice of it; ignore one that has ended or never existed."""
        self._commands.put(lambda: self._core.abort(request_id, self.clock(), choice))

    def request_snapshot(self, requester: Hashable) -> None:
        """Request all cached blocks in outputs that name ``requester``."""
        self._commands.put(partial(self._snapshot_for.append, requester))

    def reconfigure(self, settings: EngineSettings) -> None:
        self._commands.put(partial(self._core.reconfigure, settings))

    def reset_prefix_cache(self) -> None:
        self._commands.put(self._core.reset_prefix_cache)

    def _submit(self, request: NewRequest) -> None:
        try:
            self._core.add_request(request, self.clock())
        except RequestError as error:
            self._refuse(request, error)
        except Exception as error:
            id = request.request_id
            logger.error("%r could not be added", id, exc_info=error, extra={"request_id": id})
            self._refuse(request, _failure_at_request(error))

    def _refuse(self, request: NewRequest, error: RequestError) -> None:
        self._outputs.append(RequestOutput(request.request_id, 0, (), finish_reason=FinishReason.ERROR, error=error))

    def _stop(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        try:
            executed = False
            while not self._stopping:
                commanded = self._take_commands(wait=not executed)
                executed = self._step()
                if commanded or executed or self._outputs:
                    self._send_outputs()
        except Exception as error:
            logger.critical("the engine has failed", exc_info=error)
            self._failure = error
            self._on_failure(error)

    def _take_commands(self, *, wait: bool) -> bool:
        """Execute the waiting commands; with nothing else to do, wait for one first.

        While requests run, a burst of commands takes at most about ``COMMANDS_S`` of a turn.
        """
        commanded = False
        try:
            if wait:
                command = self._commands.get(timeout=_STALLED_WAIT_S if self._core.has_unfinished else _IDLE_WAIT_S)
                command()
                commanded = True
            until = self.clock() + COMMANDS_S if self._core.has_unfinished else math.inf
            while self.clock() < until:
                command = self._commands.get_nowait()
                command()
                commanded = True
        except queue.Empty:
            pass
        return commanded

    def _step(self) -> bool:
        """Plan as many steps as may be in flight and execute the oldest; return True if there was one."""
        now = self._turned_at = self.clock()
        while len(self._plans) < self._core.config.steps_in_flight:
            plan = self._core.schedule(now)
            if plan is None:
                break
            self._plans.append(plan)
        self._outputs += self._core.take_outputs()
        if not self._plans:
            return False
        if self._outputs:
            # Outputs of rejected, aborted and late requests need not wait for the step.
            self._send_outputs()
        self._execute(self._plans.popleft())
        return True

    def _execute(self, plan: StepPlan) -> None:
        started = self.clock()
        try:
            output = self._runner.execute(plan)
        except Exception as error:
            self._fail_steps(plan, error)
            return
        now = self.clock()
        self._rates.observe(plan.work, now - started)
        self._core.commit(output, now)
        self._failures = 0

    def _fail_steps(self, plan: StepPlan, error: Exception) -> None:
        """End the requests of ``plan`` and of the plans behind it, which assume that it succeeds."""
        logger.error("step %d has failed", plan.step_id, exc_info=error)
        self._failures += 1
        if self._failures == MAX_CONSECUTIVE_FAILURES:
            raise error
        answer = _failure_at_request(error)
        now = self.clock()
        for failed in (plan, *self._plans):
            self._core.fail_step(failed.step_id, answer, now)
        self._plans.clear()

    def _send_outputs(self) -> None:
        core = self._core
        outputs, self._outputs = self._outputs + core.take_outputs(), []
        snapshot_for = tuple(self._snapshot_for)
        self._snapshot_for.clear()
        self._on_outputs(
            EngineOutputs(
                outputs=outputs,
                events=core.take_events(),
                load=core.load(),
                measurements=self._rates.measurements,
                digest=core.digest,
                num_cached_blocks=core.num_cached_blocks,
                snapshot=core.snapshot() if snapshot_for else [],
                snapshot_for=snapshot_for,
            )
        )


def _failure_at_request(error: Exception) -> EngineFailure:
    return EngineFailure(f"the engine failed at this request: {type(error).__name__}; its log has the traceback")


def freeze_gc_heap() -> None:
    """Exclude the objects of start-up from garbage collection, and make collections rarer.

    The serving process calls it once, after the engine has started: its blocks are permanent too. A full collection
    over millions of permanent objects would pause every stream.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
