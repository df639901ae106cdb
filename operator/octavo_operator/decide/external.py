"""External mode and ``octavo up``: a Ray that the operator does not run. Only our own application is changed."""

from octavo_api.deployment import FINALIZER
from octavo_operator.decide import application, event_texts
from octavo_operator.decide.application import Put, Serving, Standing
from octavo_operator.decide.outcome import Front, Outcome
from octavo_operator.model import conditions
from octavo_operator.model.actions import Action, Event, RemoveApplication, SetFinalizer
from octavo_operator.model.conditions import Reason, Verdict
from octavo_operator.model.desired import Mode, Place
from octavo_operator.model.memory import Memory
from octavo_operator.model.observed import Observed, Reach, Resource


def decide(
    resource: Resource, place: Place, observed: Observed, now: float, memory: Memory, *, suspend: bool, blocked: bool
) -> Outcome:
    view = application.look(observed.serve.get(place.address), place, memory, resource.generation)
    put = application.decide(view, memory, resource.generation, now, same_cluster=True)
    if blocked:
        # A put that is not done is no correction.
        put = Put(None, memory.corrections, fight=False)
    retried = not suspend and event_texts.retry_due(view, memory, now)
    actions: list[Action] = []
    events: list[Event] = []
    if place.mode is Mode.EXTERNAL and FINALIZER not in resource.finalizers:
        # The finalizer precedes the first put. It is also set again if another client removed it.
        actions.append(SetFinalizer(True))
    if not blocked and suspend:
        if view.ours and view.standing is not Standing.LEAVING:
            actions.append(RemoveApplication(place.address, place.name))
    elif not blocked:
        put_actions, put_events = event_texts.put(place.address, place, view, put, retried=retried)
        actions += put_actions
        events += put_events
    return Outcome(
        ray=_ray(place, view, memory, now),
        wanted=view,
        serving=view,
        front=Front(address=place.address, ray_version=view.serve.ray_version if view.serve else ""),
        actions=tuple(actions),
        events=tuple(events),
        corrections=put.corrections,
        fight=put.fight,
        retried=retried and not blocked,
        # An application of that name with another owner was never ours to stop.
        stopped=suspend and view.standing in (Standing.MISSING, Standing.FOREIGN),
    )


def _ray(place: Place, view: Serving, memory: Memory, now: float) -> Verdict:
    if view.serve is not None and view.serve.reach is not Reach.UNREACHABLE:
        return event_texts.reached(view.serve.reach, view)
    what = "Ray Serve" if place.mode is Mode.LOCAL else "Ray's dashboard"
    said = f"{what} does not answer; {view.serve.message if view.serve is not None else ''}".rstrip("; ")
    if memory.config_hash:
        return event_texts.unreached(memory, said, now)
    return conditions.no(Reason.UNREACHABLE, said)
