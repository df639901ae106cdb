"""Random scripts of users' edits, other people's doings and faults; then everything must be as the specs say."""

import asyncio
import os
import random
from dataclasses import replace

import pytest

from octavo_operator.model.observed import Key
from octavo_testing.operator.sweep.checks import KeepsServing
from octavo_testing.operator.sweep.run import Run, arrived, run_script, settle, shrink, simulate
from octavo_testing.operator.sweep.script import Verb, generate
from octavo_testing.operator.sweep.steps import NAMES, Actor, first_spec

SCRIPTS = int(os.environ.get("OCTAVO_SWEEP_SCRIPTS", "500"))
SEED = os.environ.get("OCTAVO_SWEEP_SEED", "1")
FIRST = random.randrange(2**32) if SEED == "random" else int(SEED)
"""The same scripts in every run, so that a change is what makes one fail; ``random`` looks for new ones."""
PARTS = 1 if "OCTAVO_SWEEP_SEED" in os.environ and SEED != "random" else 10


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


GENTLE = (
    Verb.EDIT_LIVE,
    Verb.EDIT_CLUSTER,
    Verb.KILL,
    Verb.API_FAULTS,
    Verb.SERVE_FAULTS,
    Verb.DEAF,
    Verb.UPGRADE,
    Verb.NO_ROOM,
    Verb.ROOM,
)


def test_a_new_cluster_takes_over_before_the_old_one_goes() -> None:
    print(f"seed {FIRST}")
    spec = {"rollout": {"strategy": "NewCluster"}, "replicas": 2}
    watches: list[KeepsServing] = []
    for seed in range(FIRST, FIRST + SCRIPTS // 20):
        run = run_script(
            replace(generate(seed, verbs=GENTLE, external=(False,)), kuberay=True),
            heal=True,
            spec=spec,
            watch=lambda world: watches.append(KeepsServing(world, Key(*NAMES[0]))),
        )
        assert not run.violations, run.report()
    assert all(watch.answered for watch in watches)


@pytest.mark.parametrize("external", [False, True])
def test_a_restart_or_an_upgrade_of_the_operator_writes_nothing(external: bool) -> None:
    async def play(run: Run, actor: Actor) -> None:
        for number, (namespace, name) in enumerate(NAMES):
            run.world.create(namespace, name, first_spec(external, number))
        await arrived(run)
        await settle(run)
        before = len(run.operator.writes), len(run.world.puts)
        for upgrade in (run.operator.kill, lambda: run.operator.upgrade(3)):
            upgrade()
            await asyncio.sleep(1000)
            assert (len(run.operator.writes), len(run.world.puts)) == before

    run = simulate(11, (external,) * 3, play)
    assert not run.violations, run.report()


def test_same_seed_is_same_run() -> None:
    script = generate(7)
    assert run_script(script).world.log == run_script(script).world.log


SHARED = (
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
    """Several deployments share one Ray with applications of other owners."""
    scripts = max(SCRIPTS // 10, 20)
    print(f"OCTAVO_SWEEP_SEED={FIRST}, {scripts} scripts")
    puts = foreign = 0
    for seed in range(FIRST, FIRST + scripts):
        run = run_script(generate(seed, verbs=SHARED, external=(True, True, True)[: 2 + seed % 2]))
        assert not run.violations, run.report()
        puts += len(run.world.puts)
        foreign += len(run.world.foreign)
    assert puts > scripts
    assert foreign > 0
