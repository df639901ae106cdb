"""What holds whatever happens, in whatever order."""

import copy
import json
import os

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_operator.model.actions import Delete, DeployApplication, PatchCluster, RemoveApplication
from octavo_operator.model.observed import Reach

EXAMPLES = int(os.environ.get("OCTAVO_EXAMPLES", "25"))

EDITS = [
    {"replicas": 0},
    {"replicas": 1},
    {"replicas": 4},
    {"engine__blockSize": 32},
    {"engine__maxNumQueuedReqs": 7},
    {"router__replicas": 2},
    {"autoscaling": {"minReplicas": 0, "maxReplicas": 3}},
    {"autoscaling": None},
    {"suspend": True},
    {"suspend": False},
    {"engine__noSuchField": 1},
    {"engine__noSuchField": None},
    {"rollout__drainSeconds": 30},
]
MANAGED_EDITS = [
    {"rayCluster__managed": {"image": "octavo:2"}},
    {"rayCluster__managed": {"image": "octavo:3"}},
    {"rayCluster__managed": {"networkPolicy": True}},
    {"resources": {"limits": {"cpu": 3}}},
    {"rollout__strategy": "NewCluster"},
    {"rollout__strategy": "InPlace"},
]


def _edit(change):
    def do(w):
        try:
            w.edit(**change)
        except KeyError:
            return  # nothing to take away

    return do


def _restart(w):
    for ray in w.rays.values():
        ray.apps.clear()


def _reach(reach):
    def do(w):
        for ray in w.rays.values():
            ray.reach = reach

    return do


def _drift(w):
    for ray in w.rays.values():
        for app in ray.apps.values():
            if app.config["args"].get("owner") == "shop/qwen":
                app.config["args"]["model_uri"] = "hf://other/model"


def _kill_child(w):
    if w.children:
        w.remove(*sorted(w.children)[0])


def _kill_cluster(w):
    for cluster in w.clusters:
        w.delete_cluster(cluster)


def _secret(missing):
    return lambda w: setattr(w, "missing_secrets", missing)


def _fail(w):
    for ray in w.rays.values():
        for app in ray.apps.values():
            if app.status == "DEPLOYING":
                app.status = "DEPLOY_FAILED"


EVENTS = [
    ("step", lambda w: w.step()),
    ("head", lambda w: w.head_up()),
    ("run", lambda w: w.run_apps()),
    ("gone", lambda w: w.finish_deletions()),
    ("wait", lambda w: w.tick(400)),
    ("restart", _restart),
    ("silent", _reach(Reach.UNREACHABLE)),
    ("answers", _reach(Reach.OK)),
    ("drift", _drift),
    ("kill child", _kill_child),
    ("kill cluster", _kill_cluster),
    ("secret gone", _secret(("hub",))),
    ("secret back", _secret(())),
    ("fail", _fail),
    ("status lost", lambda w: setattr(w, "status", {})),
    *[(f"edit {json.dumps(change)}", _edit(change)) for change in EDITS],
]
MANAGED_EVENTS = [*EVENTS, *[(f"edit {json.dumps(change)}", _edit(change)) for change in MANAGED_EDITS]]


def scripts(events):
    one = st.sampled_from(events)
    return st.lists(st.one_of(one, st.just(EVENTS[0])), max_size=25)


def heal(w):
    _reach(Reach.OK)(w)
    w.missing_secrets = ()
    if w.spec.get("engine", {}).get("noSuchField"):
        w.edit(engine__noSuchField=None)
    for ray in w.rays.values():
        for app in ray.apps.values():
            if app.status == "DEPLOY_FAILED":
                app.status = "DEPLOYING"
    w.tick(700)  # a fight is over


def at_rest(w):
    made = w.settle(rounds=60)
    assert (made.actions, made.events) == ((), ())
    if w.spec.get("suspend"):
        assert w.condition("Ready") == ("False", "Suspended")
        assert not w.clusters
    else:
        assert w.condition("Ready")[0] == "True", w.status["conditions"]
        assert (w.app.status, w.app.config["args"]["model_uri"]) == ("RUNNING", "embedded://smollm2")
    assert not w.has("Stalled")
    assert w.status["observedGeneration"] == w.generation


@settings(max_examples=EXAMPLES, deadline=None)
@given(script=scripts(MANAGED_EVENTS))
def test_managed_ends_as_asked_whatever_happens(world, script):
    w = world()
    for _, event in script:
        event(w)
    heal(w)
    at_rest(w)
    assert len(w.clusters) == (0 if w.spec.get("suspend") else 1)


@settings(max_examples=EXAMPLES, deadline=None)
@given(script=scripts(EVENTS))
def test_external_ends_as_asked_and_leaves_the_foreign_application(world, script):
    w = world(external=True)
    w.step()
    foreign = copy.deepcopy(w.app)
    foreign.config = {**foreign.config, "name": "theirs", "args": {"owner": "shop/theirs"}}
    foreign.run()
    w.ray.apps["theirs"] = foreign
    before = json.dumps(foreign.config)
    for _, event in script:
        if event is not _restart:
            event(w)
    heal(w)
    at_rest(w)
    assert json.dumps(w.ray.apps["theirs"].config) == before
    assert w.ray.apps["theirs"].status == "RUNNING"
    for action in w.actions:
        if isinstance(action, DeployApplication):
            assert action.application["name"] == "shop.qwen"
        if isinstance(action, RemoveApplication):
            assert action.name == "shop.qwen"


@settings(max_examples=EXAMPLES, deadline=None)
@given(script=scripts(MANAGED_EVENTS))
def test_new_cluster_never_stops_the_cluster_with_the_traffic(world, script):
    w = world({"rollout": {"strategy": "NewCluster"}})
    w.settle()
    for name, event in script:
        if "strategy" in name or "suspend" in name or name == "kill child":
            continue
        if name != "step":
            event(w)
            continue
        active = w.children["Service", "qwen"]["spec"]["selector"]["ray.io/cluster"]
        for action in w.step().actions:
            assert not (isinstance(action, Delete) and action.name == active)
            assert not (isinstance(action, RemoveApplication) and action.address == w.address(active))


@settings(max_examples=EXAMPLES, deadline=None)
@given(script=scripts(MANAGED_EVENTS), written=st.booleans())
def test_no_patch_makes_kuberay_run_fewer_pods_than_before(world, script, written):
    w = world({"replicas": 3})
    w.settle()

    def pods():
        return {
            (name, group["groupName"]): min(max(group["replicas"], group["minReplicas"]), group["maxReplicas"])
            for name, cluster in w.clusters.items()
            for group in cluster["spec"]["workerGroupSpecs"]
        }

    for name, event in script:
        if not written:
            for cluster in w.clusters.values():
                for group in cluster["spec"]["workerGroupSpecs"]:
                    group["replicas"] = 0
        before = pods()
        if name == "step":
            event(w)
            after = pods()
            assert all(after[group] >= before[group] for group in before if group in after)
        else:
            event(w)


@settings(max_examples=EXAMPLES, deadline=None)
@given(script=scripts(MANAGED_EVENTS))
def test_a_plan_is_a_function_of_the_observation(world, script):
    w = world()
    for _, event in script:
        event(w)
    first, second = w.plan(), w.plan()
    assert first == second
    json.dumps([first.status, [str(action) for action in first.actions]])
    assert 0 < first.delay <= 30


@settings(max_examples=EXAMPLES, deadline=None)
@given(script=scripts(MANAGED_EVENTS))
def test_the_same_plan_twice_does_no_more_than_once(world, script):
    """The operator may be killed after any action, before the status is written."""
    w = world()
    for _, event in script:
        event(w)
    made = w.plan()
    for count in range(len(made.actions) + 1):
        again = copy.deepcopy(w)
        for action in made.actions[:count]:
            if not isinstance(action, PatchCluster):
                again.execute(action)
        again.tick()
        heal(again)
        at_rest(again)
