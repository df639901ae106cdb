"""The operator in this world: Octavo's own queue, reconciler and clients, started, killed and started again."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from octavo_operator.kube.client import Kube
from octavo_operator.kube.errors import KubeError
from octavo_operator.loop.backoff import Backoff
from octavo_operator.loop.handlers import WATCHED_CHILDREN
from octavo_operator.loop.queue import WorkQueue
from octavo_operator.model.defaults import Defaults
from octavo_operator.model.observed import Key
from octavo_operator.plan import plan
from octavo_operator.reconcile import Reconciler
from octavo_testing.operator.sweep.apiclient import ApiClient, Life
from octavo_testing.operator.sweep.apiserver import Document
from octavo_testing.operator.sweep.faults import Faults
from octavo_testing.operator.sweep.serveclient import SweepServeClient
from octavo_testing.operator.sweep.world import GROUP, World

WATCHED = frozenset(kind.kind for kind in WATCHED_CHILDREN)
RESYNC_S = 600.0
MOST_A_MINUTE = 150
_RESTART_S = 5.0


class Clock:
    def __init__(self, world: World) -> None:
        self._world = world

    def time(self) -> float:
        return self._world.now

    def monotonic(self) -> float:
        return self._world.now


class Operator:
    def __init__(self, world: World, faults: Faults, serve_faults: Faults, defaults: Defaults, seed: int) -> None:
        self.world, self.defaults = world, defaults
        self.reconciles: Counter[Key] = Counter()
        self._minutes: Counter[tuple[Key, int]] = Counter()
        self.writes: list[tuple[float, str, str]] = []
        self.effects = 0
        """Of the processes that have ended."""
        self._faults, self._serve_faults = faults, serve_faults
        self._rng = random.Random(seed)
        self._counted_from = 0
        self._life: Life | None = None
        self.stopped = False
        self._task: asyncio.Task[None] | None = None
        self._queue: WorkQueue | None = None
        self._wrote: Callable[[Key, str], bool] | None = None
        world.api.watchers.append(self._watch)

    @property
    def alive(self) -> bool:
        return self._life is not None and not self._life.dead.is_set()

    def start(self, last_effect: int | None = None) -> None:
        """Starts a process, which ends by itself after its effect number ``last_effect``."""
        if self.alive:
            return
        self._life = Life(last_effect)
        self._task = asyncio.get_running_loop().create_task(self._run(self._life))

    @property
    def counted(self) -> int:
        """Effects of all processes since it was last set."""
        now = self.effects + (self._life.effects if self.alive and self._life is not None else 0)
        return now - self._counted_from

    @counted.setter
    def counted(self, value: int) -> None:
        self._counted_from = 0
        self._counted_from = self.counted - value

    def end_after(self, effects: int | None) -> None:
        """Lets the process end after so many more effects; with 0 at once."""
        if self._life is not None and effects is not None:
            self._life.last = self._life.effects + effects
            if effects == 0:
                self.kill()

    def kill(self) -> None:
        if self._life is not None:
            self._life.kill()

    def strike(self, choice: int) -> None:
        """Kills it now, or after its next few effects; something starts it again."""
        self.world.say("  operator killed" if choice % 4 == 0 else f"  operator ends after {choice % 4} effects")
        if self._life is None or choice % 4 == 0:
            self.kill()
        else:
            self._life.last = self._life.effects + choice % 4

    def upgrade(self, choice: int) -> None:
        """Another version, with other defaults, takes over."""
        self.defaults = replace(self.defaults, image=f"octavo:1.{choice % 5}.0")
        self.kill()

    async def ends(self) -> None:
        """Waits for the end of this process."""
        if self._life is not None:
            await self._life.dead.wait()

    async def ended(self) -> None:
        self.stopped = True
        if self._task is not None:
            await self._task

    def _restart(self) -> None:
        if not self.stopped:
            self.start()

    async def _run(self, life: Life) -> None:
        api = ApiClient(self.world, life, self._faults, self._rng, self.writes)
        kube = Kube(api)
        serve = SweepServeClient(self.world, life, self._serve_faults, self._rng)
        reconciler = Reconciler(kube, serve, Clock(self.world), self.defaults, plan=plan, rng=self._rng)

        async def handle(key: Key) -> float:
            self._count(key)
            return await reconciler.reconcile(key)

        queue = WorkQueue(handle, backoff=Backoff(rng=self._rng))
        self._queue, self._wrote = queue, reconciler.is_own_write
        work = asyncio.ensure_future(queue.run())
        resync = asyncio.ensure_future(self._resync(kube, queue))
        try:
            await life.dead.wait()
        finally:
            self._queue = None
            self.world.timeline.after(self._rng.choice((0.5, _RESTART_S, 60.0)), self._restart)
            self.effects += life.effects
            for task in (work, resync):
                task.cancel()
            await asyncio.gather(work, resync, return_exceptions=True)

    def _count(self, key: Key) -> None:
        self.reconciles[key] += 1
        minute = int(self.world.now // 60)
        self._minutes[key, minute] += 1
        if self._minutes[key, minute] > MOST_A_MINUTE:
            self.world.violated(f"{key}: more than {MOST_A_MINUTE} reconciles in a minute")
            self.stopped = True
            self.kill()

    async def _resync(self, kube: Kube, queue: WorkQueue) -> None:
        while True:
            try:
                for key in await kube.list_keys():
                    queue.add(key)
            except KubeError:
                await asyncio.sleep(5)
                continue
            await asyncio.sleep(RESYNC_S)

    def _watch(self, change: str, document: Document) -> None:
        metadata = document["metadata"]
        if self._queue is None or self._rng.random() < self._faults.drop_watches:
            return
        if document["kind"] == "ServingDeployment":
            name = metadata["name"]
            key = Key(metadata["namespace"], name)
            if change == "MODIFIED" and self._wrote is not None and self._wrote(key, metadata["resourceVersion"]):
                return
        elif document["kind"] not in WATCHED or (name := _owner(metadata)) is None:
            return
        key = Key(metadata["namespace"], name)
        asyncio.get_running_loop().call_later(self._rng.uniform(0.01, 0.3), self._wake, self._queue, key)

    def _wake(self, queue: WorkQueue, key: Key) -> None:
        if queue is self._queue:
            queue.add(key)


def _owner(metadata: Document) -> str | None:
    found = metadata.get("labels", {}).get(f"{GROUP}/deployment")
    return None if found is None else str(found)


class _Errors(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
        self._world.violated(f"logged as an error: {text}")


@contextmanager
def errors_are_violations(world: World) -> Iterator[None]:
    """What the operator logs as an error is a bug of its own."""
    handler, logger = _Errors(world), logging.getLogger("octavo_operator")
    logger.addHandler(handler)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
