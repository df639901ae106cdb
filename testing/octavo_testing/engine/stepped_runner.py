"""A runner that executes steps when a test permits it."""

import asyncio
import threading

from octavo_engine.core.plan import StepOutput, StepPlan
from octavo_engine.engine import Runner

_TIMEOUT_S = 20.0


class SteppedRunner:
    """Runner that executes a step only when the test allows it; ``fail_next`` makes the next ones raise."""

    def __init__(self, inner: Runner) -> None:
        self._inner = inner
        self._permits = threading.Semaphore(0)
        self._free = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._at_gate = False
        self.fail_next = 0
        self.steps = 0

    def execute(self, plan: StepPlan) -> StepOutput:
        if not self._free.is_set():
            self._loop.call_soon_threadsafe(self._arrive)
            self._permits.acquire()
        self.steps += 1
        if self.fail_next:
            self.fail_next -= 1
            raise RuntimeError("the accelerator is on fire")
        return self._inner.execute(plan)

    def _arrive(self) -> None:
        self._at_gate = True
        self._arrived.set()

    async def at_gate(self) -> None:
        """Wait until a step waits for its permit."""
        await asyncio.wait_for(self._arrived.wait(), _TIMEOUT_S)

    async def allow(self, steps: int = 1) -> None:
        """Let ``steps`` steps pass, one by one."""
        for _ in range(steps):
            await self.at_gate()
            self._arrived.clear()
            self._permits.release()

    def free(self) -> None:
        """Let everything pass from now on."""
        self._free.set()
        self._permits.release()
