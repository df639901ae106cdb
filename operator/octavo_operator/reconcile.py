"""One reconcile of one deployment: observe, plan, act, report. A restart of the operator loses no state."""

import logging
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from octavo_operator.act import Actor
from octavo_operator.kube.client import Kube
from octavo_operator.kube.errors import Conflict, KubeError, NamespaceTerminating
from octavo_operator.kube.events import EventLog
from octavo_operator.kube.ray_tokens import RayTokens
from octavo_operator.loop.backoff import Backoff
from octavo_operator.metrics import Metrics
from octavo_operator.model.actions import Event, Plan
from octavo_operator.model.defaults import Defaults
from octavo_operator.model.memory import rfc3339
from octavo_operator.model.observed import Key, Observed, Resource
from octavo_operator.observe import observe
from octavo_operator.report.status import MESSAGE_LIMIT
from octavo_operator.serve.client import ServeClient
from octavo_operator.serve.errors import ServeError

_log = logging.getLogger(__name__)

_JITTER_FROM_S, _JITTER = 10.0, 0.1
"""Minimum seconds of a delay that gets jitter, and the share of the jitter. It spreads regular reconciles, so that
they do not all run at once. Short delays stay as planned."""


class Planner(Protocol):
    def __call__(self, resource: Resource, observed: Observed, now: float, defaults: Defaults) -> Plan:
        """Decide one round, as a pure function."""


class Clock(Protocol):
    def time(self) -> float:
        """Return Unix time."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""


@dataclass(frozen=True, slots=True)
class _Result:
    delay: float
    result: str
    """``ok``, ``gone`` or the reason of the failure: a label of the metric."""


class Reconciler:
    """Executor of the plans of deployments. ``plan`` is ``octavo_operator.plan.plan``."""

    def __init__(
        self,
        kube: Kube,
        serve: ServeClient,
        clock: Clock,
        defaults: Defaults,
        *,
        plan: Planner,
        metrics: Metrics | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._kube = kube
        self._serve = serve
        self._tokens = RayTokens(kube)
        self._actor = Actor(kube, serve, self._tokens)
        self._clock = clock
        self._defaults = defaults
        self._plan = plan
        self._metrics = metrics or Metrics()
        self._rng = rng or random.Random()
        self._backoff = Backoff(rng=self._rng)
        self._events = EventLog(clock.time)
        self._written: dict[Key, str] = {}

    def is_own_write(self, key: Key, resource_version: str) -> bool:
        """Return True if this version of the deployment is the operator's own last status write."""
        return self._written.get(key) == resource_version

    async def reconcile(self, key: Key) -> float:
        """Reconcile one deployment; return the seconds until the next time, ``math.inf`` if the deployment is gone.

        Failures of Kubernetes or Ray raise nothing. The operator logs and counts them, and retries after growing
        delays.
        """
        started_at = self._clock.monotonic()
        try:
            outcome = await self._round(key)
        except KubeError as error:
            outcome = self._failed(key, error, error.retry_after)
        except ServeError as error:
            outcome = self._failed(key, error, None)
        self._metrics.reconciled(outcome.result, self._clock.monotonic() - started_at)
        return outcome.delay

    async def _round(self, key: Key) -> _Result:
        resource = await self._kube.get_resource(key)
        if resource is None:
            return self._forget(key)
        observed = await observe(self._kube, self._serve, self._tokens, resource, self._defaults)
        self._metrics.observed(observed)
        plan = self._make_plan(resource, observed)
        failure: KubeError | ServeError | None = None
        after: Resource | None = resource
        failure_events: tuple[Event, ...] = ()
        try:
            after, failure_events = await self._actor.act(resource, plan.actions)
        except NamespaceTerminating:
            plan = self._make_plan(resource, replace(observed, namespace_terminating=True))
            after, failure_events = await self._actor.act(resource, plan.actions)
        except Conflict:
            raise  # the observed state behind the plan is out of date, and so is the status
        except (KubeError, ServeError) as error:
            failure = error
        if after is None:
            await self._emit(resource, (*plan.events, *failure_events))
            return self._forget(key)
        if failure is not None:
            await self._write_status(after, self._failure_status(after, plan.status, failure))
            await self._emit(after, (Event("Warning", failure.reason, failure.message),))
            retry_after = failure.retry_after if isinstance(failure, KubeError) else None
            return self._failed(key, failure, retry_after)
        await self._emit(after, (*plan.events, *failure_events))
        await self._write_status(after, plan.status)
        self._backoff.reset(key)
        return _Result(self._spread(plan.delay), "ok")

    def _make_plan(self, resource: Resource, observed: Observed) -> Plan:
        return self._plan(resource, observed, self._clock.time(), self._defaults)

    def _failure_status(
        self, resource: Resource, planned: Mapping[str, Any], failure: KubeError | ServeError
    ) -> dict[str, Any]:
        """Return the status after a failed action.

        The observed state stays. The corrections that the failed action would have made are left out. The failure is
        the last error.
        """
        before = resource.status
        last = before.get("lastError") or {}
        since = last.get("since") if last.get("reason") == failure.reason else None
        status = {name: value for name, value in planned.items() if name != "driftCorrections"}
        if "driftCorrections" in before:
            status["driftCorrections"] = before["driftCorrections"]
        message = failure.message[:MESSAGE_LIMIT]
        since = since or rfc3339(self._clock.time())
        return {**status, "lastError": {"reason": failure.reason, "message": message, "since": since}}

    async def _write_status(self, resource: Resource, status: Mapping[str, Any]) -> None:
        if resource.status != status:
            written = await self._kube.patch_status(resource, status)
            self._written[resource.key] = written.resource_version
        self._metrics.status(resource.key, status)

    async def _emit(self, resource: Resource, events: tuple[Event, ...]) -> None:
        """Log and write the events. A failed write of an Event does not fail the reconcile."""
        for event in events:
            self._metrics.event(event.reason)
            level = logging.WARNING if event.type == "Warning" else logging.INFO
            _log.log(level, "%s: %s", event.reason, event.message, extra={"deployment": str(resource.key)})
            try:
                await self._kube.apply_event(resource.key.namespace, self._events.document(resource, event))
            except KubeError as error:
                _log.info("cannot write the event: %s", error.message, extra={"deployment": str(resource.key)})

    def _failed(self, key: Key, error: KubeError | ServeError, retry_after: float | None) -> _Result:
        level = logging.DEBUG if isinstance(error, Conflict) else logging.WARNING
        _log.log(level, "%s: %s", error.reason, error.message, extra={"deployment": str(key)})
        return _Result(max(self._backoff.next(key), retry_after or 0.0), error.reason)

    def _forget(self, key: Key) -> _Result:
        self._backoff.reset(key)
        self._written.pop(key, None)
        self._tokens.forget(key)
        self._metrics.forget(key)
        return _Result(math.inf, "gone")

    def _spread(self, delay: float) -> float:
        if delay < _JITTER_FROM_S:
            return delay
        return delay * self._rng.uniform(1 - _JITTER, 1 + _JITTER)
