"""The operator's connections to the Rays of this world: Octavo's own client over a transport in memory, with faults."""

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from octavo_operator.model.observed import Application
from octavo_operator.serve.client import ServeClient
from octavo_operator.serve.errors import AuthFailed, Refused, Unreachable
from octavo_operator.serve.import_check import ImportCheck
from octavo_operator.serve.jobs import Job
from octavo_testing.operator.sweep.apiclient import Life
from octavo_testing.operator.sweep.faults import Fault, Faults
from octavo_testing.operator.sweep.ray import Ray, ServeError
from octavo_testing.operator.sweep.world import World

RAY_VERSION = "2.60.0"


class Transport:
    """Implements ``octavo_operator.serve.client.ServeTransport`` and ``octavo_operator.serve.jobs.Jobs``."""

    def __init__(
        self, world: World, life: Life, faults: Faults, rng: random.Random, address: str, token: str | None
    ) -> None:
        self._world, self._life, self._faults, self._rng = world, life, faults, rng
        self._address, self._token = address, token

    async def version(self) -> str:
        await self._travel()
        self._ray()
        return RAY_VERSION

    async def details(self) -> Mapping[str, Any]:
        """What is true when the answer is sent."""
        await self._travel()
        try:
            return self._ray().get()
        except ServeError as error:
            raise _translated(self._address, error) from None

    async def put_config(self, config: Mapping[str, Any]) -> None:
        """Takes effect at once; it is the answer that travels."""
        self._life.check()
        fault = self._faults.draw()
        if fault in (Fault.RESET, Fault.SERVER):
            raise Unreachable(f"{self._address}: {fault}")
        try:
            self._ray().put(json.loads(json.dumps(config)))  # as it goes over the wire
        except ServeError as error:
            raise _translated(self._address, error) from None
        names = ", ".join(application["name"] for application in config["applications"])
        self._world.say(f"  PUT {self._address}: {names}")
        self._world.puts.append((self._world.now, self._address))
        self._life.effect()
        await asyncio.sleep(self._rng.uniform(1, 31) if fault is Fault.SLOW else 0.01)
        self._life.check()
        if fault is not None:
            raise Unreachable(f"{self._address}: no answer in time")

    async def find(self, submission_id: str) -> Job | None:
        await self._travel()
        found = self._ray().jobs.find(submission_id)
        return None if found is None else Job(found.status, found.exit_code, found.message)

    async def ended(self, prefix: str) -> tuple[str, ...]:
        await self._travel()
        return self._ray().jobs.ended(prefix)

    async def submit(self, submission_id: str, entrypoint: str) -> bool:
        return await self._change(self._ray().jobs.submit, submission_id, entrypoint)

    async def stop(self, submission_id: str) -> None:
        await self._change(self._ray().jobs.stop, submission_id)

    async def delete(self, submission_id: str) -> bool:
        return await self._change(self._ray().jobs.delete, submission_id)

    async def _change(self, change: Callable[..., bool], *arguments: str) -> bool:
        """Of a job. Takes effect at once; it is the answer that travels."""
        done = change(*arguments)
        self._life.effect()
        await self._travel()
        return done

    async def _travel(self) -> None:
        self._life.check()
        fault = self._faults.draw()
        await asyncio.sleep(self._rng.uniform(1, 31) if fault is Fault.SLOW else self._rng.uniform(0.001, 0.02))
        self._life.check()
        if fault is not None and fault is not Fault.SLOW:
            raise Unreachable(f"{self._address}: {fault}")

    def _ray(self) -> Ray:
        ray = self._world.ray(self._address)
        if ray is None or ray.dead or not ray.answers:
            raise Unreachable(f"{self._address}: no answer")
        if ray.token is not None and ray.token != self._token:
            raise AuthFailed(f"{self._address}: 401: Ray rejects the token, or requires one")
        return ray


class SweepServeClient(ServeClient):
    """The real client, whose transports and gateways' doors are the world's."""

    def __init__(self, world: World, life: Life, faults: Faults, rng: random.Random) -> None:
        super().__init__(self.transport, import_check=ImportCheck(self.transport), required_version=RAY_VERSION)
        self._world, self._life, self._faults, self._rng = world, life, faults, rng

    def transport(self, address: str, token: str | None) -> Transport:
        return Transport(self._world, self._life, self._faults, self._rng, address, token)

    async def _listeners(self, proxy: str, application: Application) -> tuple[str, ...]:
        return ("grpc://10.0.0.1:40001", "http://10.0.0.1:40000")


def _translated(address: str, error: ServeError) -> Exception:
    if error.code == 400:
        return Refused(f"{address}: 400: Serve rejects the configuration")
    return Unreachable(f"{address}: {error.code}")
