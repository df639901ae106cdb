"""An engine that its caller steps: the core and the runner without a thread and without a service."""

import time
from collections import deque

from octavo_api.errors import EngineFailure
from octavo_engine.core.config import CoreConfig
from octavo_engine.core.engine_core import EngineCore
from octavo_engine.core.plan import StepPlan
from octavo_engine.core.request import NewRequest, RequestOutput
from octavo_engine.engine import Runner


class LLMEngine:
    """Requests in, outputs out, one call for each step. Not safe to call from two threads.

    A new engine has an empty cache. Several engines may share a runner, one after the other.
    """

    def __init__(self, config: CoreConfig, runner: Runner) -> None:
        self.core = EngineCore(config)
        self._runner = runner
        self._plans: deque[StepPlan] = deque()

    @property
    def has_unfinished_requests(self) -> bool:
        return self.core.has_unfinished

    def add_request(self, request: NewRequest) -> None:
        """Queue a request. Raises the errors of ``EngineCore.add_request``."""
        self.core.add_request(request, time.monotonic())

    def step(self) -> list[RequestOutput]:
        """Plan as many steps as may be in flight, execute the oldest, and return all new outputs.

        Raises ``EngineFailure`` if requests are unfinished and none of them can run.
        """
        core, plans = self.core, self._plans
        while (plan := core.schedule(time.monotonic())) is not None:
            plans.append(plan)
        executed = bool(plans)
        if executed:
            core.commit(self._runner.execute(plans.popleft()), time.monotonic())
        core.take_events()
        outputs = core.take_outputs()
        if core.has_unfinished and not executed and not outputs:
            raise EngineFailure("no request can run")
        return outputs
