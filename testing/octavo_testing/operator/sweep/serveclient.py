"""Connections of the operator to the Rays of this world: Octavo's own client over calls in memory, with faults."""

import asyncio
import json
import random
from typing import Any

from octavo_operator.model.observed import Application
from octavo_operator.serve.client import ServeClient
from octavo_operator.serve.errors import Unreachable
from octavo_operator.serve.import_check import ImportCheck
from octavo_operator.serve.jobs import RestJobs
from octavo_operator.serve.rest import Dashboard, RestTransport
from octavo_testing.operator.sweep.apiclient import Life
from octavo_testing.operator.sweep.dashboard import RAY_VERSION, handle
from octavo_testing.operator.sweep.faults import Fault, Faults
from octavo_testing.operator.sweep.world import World


class WorldDashboard(Dashboard):
    """A dashboard of this world. A change takes effect at once; only its answer is delayed or lost."""

    def __init__(
        self, world: World, life: Life, faults: Faults, rng: random.Random, address: str, token: str | None
    ) -> None:
        self.address = address.rstrip("/")
        self._world, self._life, self._faults, self._rng, self._token = world, life, faults, rng, token

    async def call(
        self, method: str, path: str, body: Any = None, *, max_bytes: int | None = None
    ) -> tuple[int, bytes]:
        self._life.check()
        fault = self._faults.draw()
        if method == "GET":
            await self._travel(fault, 0.02)
            return self._answer(method, path, body)
        if method == "PUT" and fault in (Fault.RESET, Fault.SERVER):
            raise Unreachable(f"{self.address}: {fault}")
        status, answer = self._answer(method, path, body)
        if method == "PUT" and status == 200:
            names = ", ".join(application["name"] for application in body["applications"])
            self._world.say(f"  PUT {self.address}: {names}")
            self._world.puts.append((self._world.now, self.address))
        if method != "PUT" or status == 200:
            self._life.effect()
        await self._travel(fault, 0.02)
        return status, answer

    async def _travel(self, fault: Fault | None, longest_s: float) -> None:
        slow = fault is Fault.SLOW
        await asyncio.sleep(self._rng.uniform(1, 31) if slow else self._rng.uniform(0.001, longest_s))
        self._life.check()
        if fault is not None and not slow:
            raise Unreachable(f"{self.address}: {fault}")

    def _answer(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        ray = self._world.ray(self.address)
        if ray is None or ray.dead or not ray.answers:
            raise Unreachable(f"{self.address}: no answer")
        # As the body and the answer are after the wire.
        status, answer = handle(ray, method, path, json.loads(json.dumps(body)), token=self._token)
        return status, json.dumps(answer).encode() if status == 200 else b""


class SweepServeClient(ServeClient):
    """The real client, whose dashboards and gateways' listeners are the world's."""

    def __init__(self, world: World, life: Life, faults: Faults, rng: random.Random) -> None:
        def dashboard(address: str, token: str | None) -> Dashboard:
            return WorldDashboard(world, life, faults, rng, address, token)

        super().__init__(
            lambda address, token: RestTransport(dashboard(address, token)),
            import_check=ImportCheck(lambda address, token: RestJobs(dashboard(address, token))),
            required_version=RAY_VERSION,
        )

    async def _listeners(self, proxy: str, application: Application) -> tuple[str, ...]:
        return ("grpc://10.0.0.1:40001", "http://10.0.0.1:40000")
