"""The operator's connection to the API server of this world: by paths, like the real one, with faults and an end."""

import asyncio
import json
import random
from collections.abc import Mapping
from typing import Any

from octavo_operator.kube.errors import Unavailable, error_of
from octavo_operator.model.kinds import ENDPOINT_SLICE
from octavo_testing.operator.sweep.apiserver import ApiError, Document
from octavo_testing.operator.sweep.faults import Fault, Faults
from octavo_testing.operator.sweep.requests import discovery, failure, handle, parse
from octavo_testing.operator.sweep.world import World


class Killed(BaseException):
    """The operator's process is gone; nothing of it runs on."""


class Life:
    """One process of the operator: counts its effects, and ends before the call after effect ``last``."""

    def __init__(self, last: int | None = None) -> None:
        self.last = last
        self.effects = 0
        self.dead = asyncio.Event()

    def check(self) -> None:
        if self.dead.is_set():
            raise Killed

    def effect(self) -> None:
        """Counts one that has just happened."""
        self.effects += 1
        if self.last is not None and self.effects >= self.last:
            self.dead.set()
            raise Killed

    def kill(self) -> None:
        self.dead.set()


class ApiClient:
    """Implements ``octavo_operator.kube.api.Api``."""

    def __init__(
        self, world: World, life: Life, faults: Faults, rng: random.Random, writes: list[tuple[float, str, str]]
    ) -> None:
        self._world, self._life, self._faults, self._rng = world, life, faults, rng
        self._writes = writes
        """Time, method and path of each that changed or could have changed something."""

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> dict[str, Any]:
        self._life.check()
        await asyncio.sleep(self._rng.uniform(0.001, 0.02))
        self._life.check()
        call = f"{method} {path}"
        fault = self._faults.draw()
        if fault is Fault.SLOW:
            await asyncio.sleep(self._rng.uniform(1, 25))
            self._life.check()
        elif fault is not None and fault is not Fault.LOST and (fault is not Fault.CONFLICT or method != "GET"):
            self._world.say(f"  {call}: {fault}")
            raise _failure(call, fault)
        if (answer := discovery(self._world.api, path)) is None:
            answer = self._answer(call, method, path, dict(query or {}), body, content_type)
        if method != "GET":
            self._writes.append((self._world.now, method, path))
            self._world.say(f"  {call}")
            self._life.effect()
        if fault is Fault.LOST:
            raise Unavailable(f"{call}: connection reset by peer")
        return _partial(answer) if "PartialObjectMetadata" in accept else answer

    def _answer(
        self, call: str, method: str, path: str, query: Mapping[str, str], body: Any, content_type: str
    ) -> Document:
        parsed = parse(method, path)
        if parsed is None or parsed.kind.kind in self._world.api.kinds_missing:
            raise error_of(call, 404, {}, b"404 page not found")
        if (parsed.verb, parsed.kind) == ("list", ENDPOINT_SLICE):
            return {"items": self._slices(parsed.namespace, query)}
        try:
            # As the body is after the wire.
            return handle(self._world.api, parsed, query, json.loads(json.dumps(body)), content_type)
        except ApiError as error:
            raise error_of(call, error.code, {}, json.dumps(failure(error, parsed)).encode()) from None

    def _slices(self, namespace: str, query: Mapping[str, str]) -> list[Document]:
        service = query["labelSelector"].removeprefix("kubernetes.io/service-name=")
        ready = self._world.ready_gateways(namespace, service)
        endpoints = [
            {"addresses": [f"10.1.0.{number}"], "conditions": {"ready": True, "serving": True, "terminating": False}}
            for number in range(ready)
        ]
        return [{"metadata": {"name": "slice", "namespace": namespace}, "endpoints": endpoints}] if endpoints else []


def _partial(answer: Document) -> Document:
    if "items" in answer:
        return {**answer, "items": [_partial(item) for item in answer["items"]]}
    return {"kind": "PartialObjectMetadata", "metadata": answer["metadata"]}


def _failure(call: str, fault: Fault) -> Exception:
    match fault:
        case Fault.CONFLICT:
            conflict = ApiError(409, "the object has been modified", "Conflict")
            return error_of(call, 409, {}, json.dumps(failure(conflict, None)).encode())
        case Fault.TOO_MANY:
            return error_of(call, 429, {"Retry-After": "2"}, b"")
        case Fault.SERVER:
            return error_of(call, 500, {}, b"etcdserver: leader changed")
    return Unavailable(f"{call}: connection reset by peer")
