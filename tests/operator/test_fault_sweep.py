"""Random scripts of users' edits, other people's doings and faults; then everything must be as the specs say."""

import os
import random

import pytest

from .sweep.run import Run, run_script, shrink
from .sweep.script import generate

SCRIPTS = int(os.environ.get("OCTAVO_SWEEP_SCRIPTS", "500"))
FIRST = int(os.environ["OCTAVO_SWEEP_SEED"]) if "OCTAVO_SWEEP_SEED" in os.environ else random.randrange(2**32)
PARTS = 1 if "OCTAVO_SWEEP_SEED" in os.environ else 10


def explain(run: Run) -> str:
    """Leaves out what does not matter for the failure."""
    script = run.script
    assert script is not None
    shortest = shrink(script, lambda shorter: bool(run_script(shorter).violations))
    return f"replay with OCTAVO_SWEEP_SEED={script.seed}\n{run_script(shortest).report()}"


@pytest.mark.parametrize("part", range(PARTS))
def test_any_script_ends_as_the_specs_say(part: int) -> None:
    scripts = 1 if PARTS == 1 else -(-SCRIPTS // PARTS)
    first = FIRST + part * scripts
    print(f"OCTAVO_SWEEP_SEED={first}, {scripts} scripts")
    for seed in range(first, first + scripts):
        run = run_script(generate(seed))
        assert not run.violations, explain(run)


def test_same_seed_is_same_run() -> None:
    script = generate(7)
    assert run_script(script).world.log == run_script(script).world.log
