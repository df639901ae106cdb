"""Runs a script to its end, lets the world come to rest, and says what is wrong then."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from octavo_operator.model.defaults import Defaults
from octavo_testing.operator.sweep.apiserver import Document
from octavo_testing.operator.sweep.checks import Monitor, check, conditions
from octavo_testing.operator.sweep.clock import VirtualLoop
from octavo_testing.operator.sweep.faults import Faults
from octavo_testing.operator.sweep.operator import Operator, errors_are_violations
from octavo_testing.operator.sweep.script import Script
from octavo_testing.operator.sweep.steps import Actor
from octavo_testing.operator.sweep.world import World

DEFAULTS = Defaults(image="octavo:1.0.0", ray_version="2.60.0")
QUIET_S, LONGEST_S, WATCHED_S = 150.0, 3 * 3600.0, 90.0


@dataclass
class Run:
    script: Script | None
    world: World
    operator: Operator
    monitor: Monitor

    @property
    def violations(self) -> list[str]:
        return self.world.violations

    def report(self) -> str:
        return "\n".join([str(self.script), *self.violations, "", *self.world.log])


def run_script(
    script: Script,
    *,
    heal: bool | None = None,
    spec: Document | None = None,
    watch: Callable[[World], Any] | None = None,
) -> Run:
    """``heal`` says whether what is missing is given in the end: KubeRay, room, Secrets; drawn from the seed else.

    ``spec`` is in every spec that is created; ``watch`` gets the world before anything happens in it.
    """

    async def play(run: Run, actor: Actor) -> None:
        actor.always = spec or {}
        if watch is not None:
            watch(run.world)
        for step in script.steps:
            await asyncio.sleep(step.delay)
            actor.do(step)
        world = run.world
        if heal if heal is not None else random.Random(script.seed).random() < 0.7:
            world.heal()
        await settle(run)

    return simulate(script.seed, script.external, play, script=script, kuberay=script.kuberay)


def simulate(
    seed: int,
    external: tuple[bool, ...],
    play: Callable[[Run, Actor], Any],
    *,
    script: Script | None = None,
    kuberay: bool = True,
    last_effect: int | None = None,
) -> Run:
    """Runs ``play`` in a new world with an operator, which ends after ``last_effect`` and is started again."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(_simulate(loop, seed, external, play, script, kuberay, last_effect))
    finally:
        loop.close()


async def _simulate(
    loop: VirtualLoop,
    seed: int,
    external: tuple[bool, ...],
    play: Callable[[Run, Actor], Any],
    script: Script | None,
    kuberay: bool,
    last_effect: int | None,
) -> Run:
    world = World(loop, seed, kuberay)
    faults, serve_faults = Faults(loop, random.Random(seed + 1)), Faults(loop, random.Random(seed + 2))
    operator = Operator(world, faults, serve_faults, DEFAULTS, seed + 3)
    actor = Actor(world, faults, serve_faults, external, operator.strike, operator.upgrade)
    run = Run(script, world, operator, Monitor(world, DEFAULTS))
    with errors_are_violations(world):
        operator.start(last_effect)
        try:
            await play(run, actor)
        finally:
            operator.kill()
            await operator.ended()
    return run


async def arrived(run: Run) -> None:
    """Waits until every deployment is ready, or suspended."""
    for _ in range(200):
        await asyncio.sleep(5)
        found = [conditions(document).get("Ready", {}) for document in run.world.api.every("ServingDeployment")]
        if all(ready.get("status") == "True" or ready.get("reason") == "Suspended" for ready in found):
            await asyncio.sleep(5)
            return
    run.world.violated("never ready")


async def settle(run: Run) -> None:
    """Waits until the operator writes nothing any more, and then watches that it stays so."""
    world, operator = run.world, run.operator
    began = world.now
    while world.now - began < LONGEST_S:
        await asyncio.sleep(20)
        last = max(
            [
                began,
                world.changed_at + 60 - QUIET_S,
                *(write[0] for write in operator.writes[-1:]),
                *(put[0] for put in world.puts[-1:]),
            ]
        )
        going = any(
            "deletionTimestamp" in found["metadata"] or found.get("status", {}).get("rayCluster", {}).get("draining")
            for found in world.api.every("ServingDeployment")
        )
        if operator.stopped or (operator.alive and not going and world.now - last >= QUIET_S):
            break
    else:
        world.violated(f"still writing after {LONGEST_S:.0f} s: {operator.writes[-5:]} {world.puts[-3:]}")
    check(world, run.monitor, DEFAULTS)
    pending = [_to_come(found.get("status", {})) for found in world.api.every("ServingDeployment")]
    writes, puts, reconciles = len(operator.writes), len(world.puts), operator.reconciles.copy()
    await asyncio.sleep(WATCHED_S)
    # What failed to deploy is tried again every few minutes, and said so; deadlines pass, corrections are forgotten.
    allowed = 8 * len(failing(world)) + sum(pending)
    if len(new := operator.writes[writes:]) > allowed:
        world.violated(f"{len(new)} writes at rest: {[' '.join(write[1:]) for write in new[:5]]}")
    if len(world.puts) - puts > 2 * len(failing(world)):
        world.violated(f"{len(world.puts) - puts} puts at rest")
    for key, number in (operator.reconciles - reconciles).items():
        if number > WATCHED_S / (2 if failing(world) else 5):
            world.violated(f"{key}: {number} reconciles in {WATCHED_S:.0f} s at rest")


def _to_come(status: Document) -> int:
    """How many more writes time alone may bring."""
    return len(status.get("driftCorrections", ())) + (3 if "progress" in status else 0)


def failing(world: World) -> list[str]:
    rays = [world.shared, *(cluster.ray for cluster in world.kuberay.clusters.values())]
    return [application.name for ray in rays for application in ray.applications.values() if application.broken]


def shrink(script: Script, fails: Callable[[Script], bool], tries: int = 80) -> Script:
    """Leaves out steps as long as it still fails."""
    index = len(script.steps) - 1
    while index >= 0 and tries > 0:
        shorter = script.without(index)
        tries -= 1
        if fails(shorter):
            script = shorter
        index -= 1
    return script
