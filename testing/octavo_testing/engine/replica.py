"""A real engine server over the real core, with the synthetic runner."""

import time
from dataclasses import replace
from typing import Any

from octavo_api.settings import EngineSettings
from octavo_engine.service.server import EngineServer
from octavo_engine.startup.synthetic import SyntheticEngine, load_synthetic, next_token
from octavo_testing.engine.gateway import SECRET
from octavo_testing.engine.stepped_runner import SteppedRunner

VOCAB = 1000


class Replica:
    """A server under test with its runner."""

    def __init__(self, server: EngineServer, runner: Any) -> None:
        self.server = server
        self.runner = runner

    @property
    def port(self) -> int:
        return self.server.port

    def blocked_s(self, gateway: str) -> float:
        """Return the seconds for which ``gateway`` has not taken the message that it is being sent."""
        [peer] = [peer for peer in self.server._peers if peer.gateway == gateway]
        return peer.blocked_s(time.monotonic())

    async def stop(self) -> None:
        """Stop the server and check that its core is whole."""
        if isinstance(self.runner, SteppedRunner):
            self.runner.free()
        await self.server.stop()
        if not self.server.failed.is_set():
            self.server._engine._core.check_integrity()


async def start_replica(
    *,
    stepped: bool = False,
    step_time_s: float = 0.0,
    num_blocks: int = 256,
    block_size: int = 4,
    steps_in_flight: int = 1,
    port: int = 0,
    secret: str = SECRET,
    **settings: Any,
) -> Replica:
    """Start a server; ``stepped`` gives it a ``SteppedRunner``.

    No kernel reads the blocks, so ``block_size`` may be less than the settings allow.
    """
    loaded = load_synthetic(
        f"synthetic://{VOCAB}",
        EngineSettings(**{"max_model_len": 512, "seed": 1, **settings}),
        num_blocks=num_blocks,
        step_time_s=step_time_s,
        steps_in_flight=steps_in_flight,
    )
    core_config = replace(loaded.core_config, block_size=block_size)
    runner: Any = SteppedRunner(loaded.runner) if stepped else loaded.runner
    engine = SyntheticEngine(core_config, runner, loaded.model_key, loaded.kv_dtype, loaded.max_model_len, VOCAB)
    server = await EngineServer.start(engine, replica="replica-0", port=port, secret=secret)
    return Replica(server, runner)


def continuation(prompt: list[int], count: int, choice: int = 0) -> list[int]:
    """Return the tokens that the synthetic engine generates after a prompt."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens[-1], len(tokens) - 1, choice, VOCAB))
    return tokens[len(prompt) :]
