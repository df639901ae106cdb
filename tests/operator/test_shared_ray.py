"""Several ServingDeployments and somebody else's applications on one Ray: nobody loses anything."""

import os
import random

from octavo_testing.operator.sweep.run import run_script
from octavo_testing.operator.sweep.script import Verb, generate

SCRIPTS = int(os.environ.get("OCTAVO_SWEEP_SCRIPTS", "500")) // 10
VERBS = (
    Verb.CREATE,
    Verb.EDIT_LIVE,
    Verb.EDIT_ROLLING,
    Verb.EDIT_BROKEN,
    Verb.EDIT_BACK,
    Verb.SCALE,
    Verb.AUTOSCALING_ON,
    Verb.AUTOSCALING_OFF,
    Verb.SUSPEND,
    Verb.RESUME,
    Verb.DELETE,
    Verb.FOREIGN_SET,
    Verb.FOREIGN_GONE,
    Verb.FOREIGN_SAME_NAME,
    Verb.KILL,
    Verb.SERVE_FAULTS,
    Verb.API_FAULTS,
)


def test_foreign_applications_are_never_touched() -> None:
    first = random.randrange(2**32)
    print(f"seed {first}")
    puts = foreign = 0
    for seed in range(first, first + SCRIPTS):
        run = run_script(generate(seed, verbs=VERBS, external=(True, True, True)[: 2 + seed % 2]))
        assert not run.violations, run.report()
        puts += len(run.world.puts)
        foreign += len(run.world.foreign)
    assert puts > SCRIPTS
    assert foreign > 0
