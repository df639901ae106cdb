"""Applications that real Ray replicas import in tests: the real deployments around an engine without a model.

``OCTAVO_TEST_HANG`` names a file: while it exists, a step does not end.
"""

import os
import time
from pathlib import Path
from typing import Any

from ray.serve import Application

from octavo_api.resource.serve_config import ApplicationArgs, engine_settings
from octavo_serving.app import compose
from octavo_serving.engine_replica import EngineReplica
from octavo_serving.gateway_replica import GatewayReplica

VOCAB_SIZE = 49152
STEP_S = 0.02


class HangingRunner:
    """Executes what ``runner`` does, unless told to hang."""

    def __init__(self, runner: Any, hang: Path) -> None:
        self._runner = runner
        self._hang = hang

    def execute(self, plan: Any) -> Any:
        while self._hang.exists():
            time.sleep(0.1)
        return self._runner.execute(plan)


class SyntheticReplica(EngineReplica):
    """An engine that makes tokens up, one every 20 ms and sequence; the gateway decodes them as SmolLM2's."""

    heartbeat_limit_s = 3.0

    def load(self, args: ApplicationArgs) -> Any:
        from dataclasses import replace

        from octavo_engine.startup.synthetic import load_synthetic

        settings = engine_settings(self._environment, self._config)
        loaded = load_synthetic(f"synthetic://{VOCAB_SIZE}", settings, step_time_s=STEP_S)
        return replace(loaded, runner=HangingRunner(loaded.runner, Path(os.environ["OCTAVO_TEST_HANG"])))


def build(args: ApplicationArgs) -> Application:
    return compose(args, SyntheticReplica, GatewayReplica)
