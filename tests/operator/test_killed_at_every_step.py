"""The operator is killed after its k-th effect, for every k, and started again: the end is the same."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from octavo_testing.operator.sweep.ray import canonical
from octavo_testing.operator.sweep.run import Run, arrived, settle, simulate
from octavo_testing.operator.sweep.steps import NAMES, Actor, first_spec
from octavo_testing.operator.sweep.world import set_path

NAMESPACE, NAME = NAMES[0]


def edit(path: str, value: Any) -> Callable[[Run], None]:
    return lambda run: run.world.edit(NAMESPACE, NAME, lambda spec: set_path(spec, path, value))


def delete(run: Run) -> None:
    run.world.delete(NAMESPACE, NAME)


def strategy(name: str) -> dict[str, Any]:
    return {"rollout": {"strategy": name}}


CASES: dict[str, tuple[bool, dict[str, Any], Callable[[Run], None] | None]] = {
    "managed create": (False, {}, None),
    "managed live edit": (False, {"replicas": 2}, edit("engine.maxNumQueuedReqs", 100)),
    "managed rolling edit": (False, {"replicas": 2}, edit("engine.blockSize", 32)),
    "managed model edit": (False, {}, edit("model.uri", "hf://octavo/a")),
    "managed InPlace": (False, strategy("InPlace"), edit("rayCluster.managed.image", "octavo:test-a")),
    "managed NewCluster": (False, strategy("NewCluster"), edit("rayCluster.managed.image", "octavo:test-a")),
    "managed scale up": (False, {}, edit("replicas", 3)),
    "managed scale down": (False, {"replicas": 4}, edit("replicas", 1)),
    "managed scale to zero": (False, {"replicas": 2}, edit("replicas", 0)),
    "managed suspend": (False, {}, edit("suspend", True)),
    "managed resume": (False, {"suspend": True}, edit("suspend", False)),
    "managed delete": (False, {}, delete),
    "external create": (True, {}, None),
    "external live edit": (True, {}, edit("engine.maxNumQueuedReqs", 100)),
    "external rolling edit": (True, {"replicas": 2}, edit("engine.blockSize", 32)),
    "external scale": (True, {"replicas": 3}, edit("replicas", 1)),
    "external suspend": (True, {}, edit("suspend", True)),
    "external delete": (True, {}, delete),
}


def play(
    external: bool, extra: dict[str, Any], change: Callable[[Run], None] | None, last: int | None
) -> Callable[[Run, Actor], Awaitable[None]]:
    async def _play(run: Run, actor: Actor) -> None:
        world = run.world
        spec = {"model": {"uri": "embedded://smollm2"}, **extra}
        spec["rayCluster"] = first_spec(external, 0)["rayCluster"]
        if change is None:
            run.operator.end_after(last)
            world.create(NAMESPACE, NAME, spec)
        else:
            world.create(NAMESPACE, NAME, spec)
            await arrived(run)
            run.operator.end_after(last)
            change(run)
        run.operator.counted = 0
        await asyncio.sleep(1)
        await settle(run)

    return _play


def end_state(run: Run) -> dict[str, Any]:
    """Everything that lasts, without what differs between any two runs: uids, versions, times."""
    state: dict[str, Any] = {}
    for key, document in run.world.api.objects.items():
        if key.kind == "Event":
            continue
        status = document.get("status", {})
        said = {c["type"]: (c["status"], c["reason"]) for c in status.get("conditions", ())}
        counts = {name: status.get(name) for name in ("replicas", "readyReplicas", "observedGeneration")}
        state["/".join(key)] = (document.get("spec"), said if key.kind == "ServingDeployment" else None, counts)
    for ray in [run.world.shared, *(c.ray for c in run.world.kuberay.clusters.values() if not c.deleted)]:
        for name, application in ray.applications.items():
            state[f"{ray.address} {name}"] = canonical(application.config)
        state[f"{ray.address} jobs"] = list(ray.jobs.known)
    return state


@pytest.mark.parametrize("case", CASES)
def test_killed_after_any_effect_the_end_is_the_same(case: str) -> None:
    external, extra, change = CASES[case]
    whole = simulate(1, (external,), play(external, extra, change, None))
    assert not whole.violations, whole.report()
    effects = whole.operator.counted
    assert effects > 0 or case == "managed delete"  # which owner references do alone
    assert not whole.world.shared.jobs.known
    for last in range(effects + 1):
        run = simulate(1, (external,), play(external, extra, change, last))
        assert not run.violations, f"killed after effect {last} of {effects}\n{run.report()}"
        assert end_state(run) == end_state(whole), f"killed after effect {last} of {effects}\n{run.report()}"


@pytest.mark.parametrize("external", [False, True])
def test_deleted_while_the_operator_is_down_after_any_effect_of_create(external: bool) -> None:
    async def play(run: Run, actor: Actor, last: int) -> None:
        run.operator.end_after(last)
        run.world.create(NAMESPACE, NAME, first_spec(external, 0))
        await asyncio.wait_for(run.operator.ends(), 600)
        run.world.delete(NAMESPACE, NAME)
        await asyncio.sleep(1)
        await settle(run)

    for last in range(1, 8):
        run = simulate(1, (external,), lambda run, actor, last=last: play(run, actor, last))
        assert not run.violations, run.report()
        left = [key for key in run.world.api.objects if key.kind != "Event"]
        assert not left, run.report()
        assert not run.world.shared.applications, run.report()
