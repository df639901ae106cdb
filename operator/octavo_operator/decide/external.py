"""External mode and ``octavo up``: a Ray that the operator does not run. Only our own application is changed."""

from octavo_api.resource.deployment import FINALIZER
from octavo_operator.decide import event_texts, ray_verdict
from octavo_operator.decide.application import (
    ApplicationView,
    DeployDecision,
    SyncState,
    decide_deploy,
    retry_due,
    view_application,
)
from octavo_operator.decide.outcome import ActiveCluster, Outcome
from octavo_operator.model import conditions
from octavo_operator.model.actions import Action, Event, RemoveApplication, SetFinalizer
from octavo_operator.model.conditions import Reason, Verdict
from octavo_operator.model.desired import DesiredApplication, Mode
from octavo_operator.model.memory import Memory
from octavo_operator.model.observed import Observed, Reach, Resource


def decide_external(
    resource: Resource,
    desired: DesiredApplication,
    observed: Observed,
    now: float,
    memory: Memory,
    *,
    suspend: bool,
    blocked: bool,
) -> Outcome:
    """Decide one round. If ``blocked``, change nothing at Ray: objects that the spec needs are missing."""
    view = view_application(observed.serve.get(desired.address), desired, memory, resource.generation)
    decision = decide_deploy(view, memory, resource.generation, now, same_cluster=True)
    if blocked:
        # A deploy that does not happen is no correction.
        decision = DeployDecision(None, memory.corrections, drift_fight=False)
    retried = not suspend and retry_due(view, memory, now)
    actions: list[Action] = []
    events: list[Event] = []
    if desired.mode is Mode.EXTERNAL and FINALIZER not in resource.finalizers:
        # The finalizer precedes the first deploy. It is also set again if another client removed it.
        actions.append(SetFinalizer(True))
    if not blocked and suspend:
        if view.ours and view.sync is not SyncState.DELETING:
            actions.append(RemoveApplication(desired.address, desired.name))
    elif not blocked:
        deploy_actions, deploy_events = event_texts.deploy(desired.address, desired, view, decision, retried=retried)
        actions += deploy_actions
        events += deploy_events
    return Outcome(
        ray=_ray(desired, view, memory, now),
        target=view,
        active=view,
        cluster=ActiveCluster(address=desired.address, ray_version=view.serve.ray_version if view.serve else ""),
        actions=tuple(actions),
        events=tuple(events),
        corrections=decision.corrections,
        drift_fight=decision.drift_fight,
        retried=retried and not blocked,
        # An application of that name with another owner was never ours to stop.
        stopped=suspend and view.sync in (SyncState.MISSING, SyncState.FOREIGN),
    )


def _ray(desired: DesiredApplication, view: ApplicationView, memory: Memory, now: float) -> Verdict:
    if view.serve is not None and view.serve.reach is not Reach.UNREACHABLE:
        return ray_verdict.answering(view.serve.reach, view)
    what = "Ray Serve" if desired.mode is Mode.LOCAL else "Ray's dashboard"
    message = f"{what} does not answer; {view.serve.message if view.serve is not None else ''}".rstrip("; ")
    if memory.config_hash:
        return ray_verdict.silent(memory, message, now)
    return conditions.no(Reason.UNREACHABLE, message)
