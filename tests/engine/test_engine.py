"""One turn of the engine's thread, called by the test itself."""

import pytest

from octavo_engine.engine import COMMANDS_S, Engine
from octavo_testing.engine.core_requests import create_core, create_requests
from octavo_testing.engine.fake_runner import FakeRunner

COMMAND_S = COMMANDS_S / 4


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def work(self):
        self.now += COMMAND_S


@pytest.mark.parametrize(("decodes", "executed"), [(False, 100), (True, 4)])
def test_a_burst_of_commands_takes_a_bounded_share_of_a_turn(decodes, executed):
    core, clock = create_core(), Clock()
    runner = FakeRunner(core.config.block_size)
    engine = Engine(core, runner, on_outputs=lambda _: None, on_failure=lambda _: None, clock=clock)
    if decodes:
        core.add_request(create_requests(1)[0], 0.0)
    for _ in range(100):
        engine._commands.put(clock.work)
    assert engine._take_commands(wait=False)
    assert clock.now == pytest.approx(executed * COMMAND_S)
    core.check_integrity()
