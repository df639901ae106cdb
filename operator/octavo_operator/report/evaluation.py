"""Conditions of a deployment, judged from the observed state and the decisions."""

from collections.abc import Mapping
from dataclasses import dataclass

from octavo_api.resource.deployment import ServingDeployment
from octavo_api.resource.serve_config import ENGINE, GATEWAY
from octavo_operator.decide.application import ApplicationView, SyncState
from octavo_operator.decide.outcome import Outcome
from octavo_operator.model.conditions import Condition, Reason, State, Type, Verdict, no, unknown, yes
from octavo_operator.model.desired import DesiredApplication, Mode, counts
from octavo_operator.model.memory import Memory
from octavo_operator.model.observed import Deployment

_ROLLING = frozenset({"UPDATING"})
_SCALING = frozenset({"HEALTHY", "UPSCALING", "DOWNSCALING"})
_ABOUT_ENGINES = frozenset({Reason.REPLICAS_MISSING, Reason.SCALED_TO_ZERO})
_UNSCHEDULED = "to be scheduled"
"""Words in Serve's message on a deployment whose replicas wait for a node."""
_NO_ROOM_FOR_GATEWAYS = "add room for a second set of gateways, because new ones start before old ones stop"
_NO_ROOM_TO_SURGE = "add room for one more engine, or set spec.rollout.maxSurgePercent to 0 to stop an old one first"


@dataclass(frozen=True, slots=True)
class Evaluation:
    conditions: Mapping[Type, Verdict]
    progress: str
    """Text that describes the stage: another text is progress. Empty if no progress is expected."""
    since: float
    """Unix time at which the deployment reached this stage."""


@dataclass(frozen=True, slots=True)
class Evaluator:
    deployment: ServingDeployment
    desired: DesiredApplication
    memory: Memory
    outcome: Outcome
    problem: Verdict | None
    ready_gateways: int

    def evaluate(self, generation: int, now: float) -> Evaluation:
        application, router = self._application(), self._router()
        available = self._available()
        ready = self._ready(application, router, available)
        progress = "" if self._at_rest(ready) else self._progress(generation, application, ready)
        since = now
        if progress == self.memory.progress and self.memory.progress_at is not None:
            since = self.memory.progress_at
        late = bool(progress) and now - since >= self.deployment.spec.rollout.progress_deadline_seconds
        progressing = self._progressing(ready, application, late=late)
        verdicts = {
            Type.READY: ready,
            Type.AVAILABLE: available,
            Type.SPEC_VALID: self.problem or self._importable(),
            Type.RAY_CLUSTER_READY: self.outcome.ray,
            Type.APPLICATION_READY: application,
            Type.ROUTER_READY: router,
            Type.PROGRESSING: progressing,
            Type.DEGRADED: self._degraded(ready, application, available),
        }
        stalled = self._stalled(application, progressing)
        if stalled is not None:
            verdicts[Type.STALLED] = stalled
        elif progressing.true:
            verdicts[Type.RECONCILING] = progressing
        return Evaluation(verdicts, progress, since)

    @property
    def _suspend(self) -> bool:
        return self.deployment.spec.suspend

    def _importable(self) -> Verdict:
        """Judge if Ray has Octavo, which shows when Ray builds the application.

        The operator retries until a user installs it.
        """
        found = self.outcome.target.application
        if self.desired.mode is Mode.EXTERNAL and found is not None and found.missing_package:
            return no(Reason.INCOMPATIBLE_RAY, found.message)
        return yes(Reason.VALID)

    def _application(self) -> Verdict:
        view = self.outcome.target
        if self._suspend and self.outcome.stopped:
            return no(Reason.SUSPENDED)
        match view.sync:
            case SyncState.UNKNOWN:
                served = self.memory.config_hash and self.outcome.ray.state is State.UNKNOWN
                return unknown(Reason.UNREACHABLE) if served else no(Reason.NOT_DEPLOYED)
            case SyncState.MISSING:
                return no(Reason.NOT_DEPLOYED)
            case SyncState.FOREIGN:
                return no(
                    Reason.APPLICATION_NAME_CONFLICT,
                    f"Ray Serve has an application {self.desired.name} of another owner, which the operator does not "
                    "change. Rename this resource, or delete that application",
                )
            case SyncState.DELETING:
                return no(Reason.DELETING, "Serve deletes the application once its streams have ended")
        return self._deployed(view)

    def _deployed(self, view: ApplicationView) -> Verdict:
        assert view.application is not None
        text = summary_line(view.application.message, *(d.message for d in view.application.deployments.values()))
        match view.application.status:
            case "DEPLOY_FAILED" if view.sync is SyncState.CURRENT:
                return no(Reason.DEPLOY_FAILED, text or "Ray Serve reports no reason")
            case "UNHEALTHY":
                return no(Reason.UNHEALTHY, text or "replicas have failed")
            case "RUNNING" if view.sync is SyncState.CURRENT:
                return yes(Reason.RUNNING)
        return no(Reason.DEPLOYING, self._counted(view))

    def _counted(self, view: ApplicationView) -> str:
        engines, gateways = counts(self.desired.config, ENGINE), counts(self.desired.config, GATEWAY)
        return (
            f"{running(view.engines)} of {engines.minimum} engine replicas and "
            f"{running(view.gateways)} of {gateways.minimum} gateways run"
        )

    def _router(self) -> Verdict:
        if self._suspend:
            return no(Reason.SUSPENDED)
        if self.desired.mode is Mode.MANAGED:
            ready = self.ready_gateways
        elif self.outcome.active.sync is SyncState.UNKNOWN:
            return unknown(Reason.UNREACHABLE)
        else:
            ready = running(self.outcome.active.gateways) if self.outcome.active.ours else 0
        return yes(Reason.ENDPOINTS_READY) if ready else no(Reason.NO_ENDPOINTS, "no gateway accepts connections")

    def _available(self) -> Verdict:
        """Judge if requests are answered now. While Ray does not answer, its last known state stays."""
        view = self.outcome.active
        if self._suspend:
            return no(Reason.SUSPENDED)
        managed = self.desired.mode is Mode.MANAGED
        if managed and not self.ready_gateways:
            return no(Reason.NO_ENDPOINTS, "no gateway accepts connections")
        if view.sync is SyncState.UNKNOWN:
            last = self.memory.conditions.get(Type.AVAILABLE)
            if managed:
                return by_gateways(last)
            return unknown(Reason.UNREACHABLE) if last is None else Verdict(last.state, last.reason, last.message)
        if not view.ours or not running(view.gateways):
            return no(Reason.NO_ENDPOINTS, "no gateway runs")
        if running(view.engines):
            return yes(Reason.SERVING)
        scaling = self.deployment.spec.autoscaling
        if scaling is not None and scaling.min_replicas == 0:
            return yes(Reason.SCALED_TO_ZERO, "the first request starts an engine, and waits for it")
        return no(Reason.SCALED_TO_ZERO if self._scaled_to_zero() else Reason.REPLICAS_MISSING, "no engine runs")

    def _scaled_to_zero(self) -> bool:
        return counts(self.desired.config, ENGINE).minimum == 0

    def _ready(self, application: Verdict, router: Verdict, available: Verdict) -> Verdict:
        outcome = self.outcome
        if self._suspend:
            return no(Reason.SUSPENDED, "spec.suspend is true")
        if self.problem is not None:
            return no(Reason(self.problem.reason), self.problem.message)
        rolling = available.true and (not outcome.switched or outcome.target.sync is not SyncState.CURRENT)
        if not outcome.ray.true:
            reason = Reason.ROLLING_OUT if available.true and not outcome.switched else Reason(outcome.ray.reason)
            return Verdict(outcome.ray.state, reason, outcome.ray.message)
        if application.state is not State.TRUE:
            if application.reason in (Reason.DEPLOYING, Reason.NOT_DEPLOYED) and (rolling or available.true):
                scaling = outcome.switched and self._scales()
                return no(Reason.SCALING if scaling else Reason.ROLLING_OUT, application.message)
            return Verdict(application.state, application.reason, application.message)
        if not outcome.switched:
            return no(Reason.ROLLING_OUT, "the new Ray cluster is not complete yet; the old one answers")
        if not router.true:
            return Verdict(router.state, router.reason, router.message)
        return self._enough_replicas(outcome.target)

    def _enough_replicas(self, view: ApplicationView) -> Verdict:
        minimum = counts(self.desired.config, ENGINE).minimum
        needed = minimum if self.deployment.spec.autoscaling is None else min(minimum, 1)
        running_engines = running(view.engines)
        if running_engines < needed:
            return no(Reason.REPLICAS_MISSING, self._counted(view))
        if not running_engines and not needed:
            return yes(Reason.SCALED_TO_ZERO, "no engine runs, as the spec asks")
        return yes(Reason.SERVING)

    def _scales(self) -> bool:
        """Return True if Serve only adds or removes replicas, and replaces none."""
        application = self.outcome.target.application
        if application is None or self.outcome.target.sync is not SyncState.CURRENT:
            return False
        states = {deployment.status for deployment in application.deployments.values()}
        return bool(states) and states <= _SCALING

    def _at_rest(self, ready: Verdict) -> bool:
        if self._suspend:
            return self.outcome.stopped
        return ready.true or self.problem is not None

    def _progress(self, generation: int, application: Verdict, ready: Verdict) -> str:
        view = self.outcome.target
        parts = (
            generation,
            ready.reason,
            self.outcome.ray.reason,
            application.reason,
            running(view.engines),
            running(view.gateways),
            self.ready_gateways,
            len(self.outcome.draining),
        )
        return "/".join(str(part) for part in parts)

    def _progressing(self, ready: Verdict, application: Verdict, *, late: bool) -> Verdict:
        if self._suspend:
            return no(Reason.SUSPENDED) if self.outcome.stopped else yes(Reason.SUSPENDING, "streams end first")
        if self.problem is not None:
            return no(Reason(self.problem.reason), self.problem.message)
        if ready.true:
            return no(Reason.NEW_GENERATION_AVAILABLE)
        if application.reason == Reason.APPLICATION_NAME_CONFLICT:
            return no(Reason.APPLICATION_NAME_CONFLICT, application.message)
        waits = self._capacity_message()
        if late:
            seconds = self.deployment.spec.rollout.progress_deadline_seconds
            text = f"no progress for {seconds} s: {waits or ready.message or ready.reason}"
            return no(Reason.PROGRESS_DEADLINE_EXCEEDED, text)
        if waits:
            return yes(Reason.INSUFFICIENT_CAPACITY, waits)
        in_progress = ready.reason in (Reason.ROLLING_OUT, Reason.SCALING, Reason.DEPLOYING)
        return yes(Reason(ready.reason) if in_progress else Reason.WAITING, ready.message or str(ready.reason))

    def _capacity_message(self) -> str:
        """Return Serve's message about replicas that fit nowhere, empty if there is none."""
        application = self.outcome.target.application
        for deployment in application.deployments.values() if application else ():
            if _UNSCHEDULED not in deployment.message:
                continue
            if running(deployment) < deployment.target:
                return summary_line(deployment.message)
            if deployment.status in _ROLLING:
                advice = _NO_ROOM_TO_SURGE if deployment.name == ENGINE else _NO_ROOM_FOR_GATEWAYS
                return f"{advice}: {summary_line(deployment.message)}"
        return ""

    def _degraded(self, ready: Verdict, application: Verdict, available: Verdict) -> Verdict:
        if self.outcome.drift_fight:
            return yes(
                Reason.DRIFT_FIGHT,
                "another client changes the application repeatedly. The operator reverts it at most three times in ten "
                "minutes. Find the other client of this Ray, and stop it",
            )
        if not available.true or self._suspend:
            return no(Reason.AS_ASKED)
        if self.problem is not None or application.reason == Reason.DEPLOY_FAILED:
            return yes(Reason.OLD_GENERATION_SERVING, "the last generation serves, not the current one")
        if ready.reason in (Reason.REPLICAS_MISSING, Reason.UNHEALTHY):
            return yes(Reason.REPLICAS_MISSING, ready.message)
        return no(Reason.AS_ASKED)

    def _stalled(self, application: Verdict, progressing: Verdict) -> Verdict | None:
        """Return the problem that a user must solve before the deployment continues, None if there is none."""
        if self._suspend:
            return None
        if self.problem is not None:
            return yes(Reason(self.problem.reason), self.problem.message)
        if self.outcome.ray.reason in (Reason.KUBERAY_NOT_INSTALLED, Reason.AUTH_FAILED):
            return yes(Reason(self.outcome.ray.reason), self.outcome.ray.message)
        if application.reason == Reason.APPLICATION_NAME_CONFLICT:
            return yes(Reason.APPLICATION_NAME_CONFLICT, application.message)
        if progressing.reason == Reason.PROGRESS_DEADLINE_EXCEEDED:
            return yes(Reason.PROGRESS_DEADLINE_EXCEEDED, progressing.message)
        return None


def by_gateways(last: Condition | None) -> Verdict:
    """Judge ``Available`` of a managed deployment with ready gateways, while Serve does not report its engines.

    If the verdict in ``last`` is about engines, it stays. If it is about missing gateways, it does not.
    """
    if last is not None and (last.state is State.TRUE or last.reason in _ABOUT_ENGINES):
        return Verdict(last.state, last.reason, last.message)
    return yes(Reason.ENDPOINTS_READY, "gateways accept connections; Ray does not report how many engines run")


def running(deployment: Deployment | None) -> int:
    return 0 if deployment is None else deployment.running


def summary_line(*messages: str, limit: int = 512) -> str:
    """Return the first message with text, as one line. Of a traceback return the last line, where the error is."""
    for message in messages:
        lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
        if lines:
            text = lines[-1] if "Traceback" in message else " ".join(lines)
            return text if len(text) <= limit else text[: limit - 1] + "…"
    return ""
