"""Every situation of external mode, decided; and ``octavo up``, which plans the same way."""

import copy

import pytest

from octavo_api.serve_config import Bind, Placement
from octavo_operator.model.actions import DeployApplication, RemoveApplication, SetFinalizer
from octavo_operator.model.defaults import Defaults, Local
from octavo_operator.model.observed import Reach, ServeState

ADDRESS = "http://ray.example:8265"


def names(actions):
    return [type(action).__name__ for action in actions]


def add_foreign(w, name="theirs"):
    theirs = copy.deepcopy(w.ray.apps["shop.qwen"]) if "shop.qwen" in w.ray.apps else None
    if theirs is None:
        w.step()
        theirs = copy.deepcopy(w.app)
        w.ray.apps.clear()
    theirs.config = {**theirs.config, "name": name, "args": {}}
    theirs.run()
    w.ray.apps[name] = theirs
    return copy.deepcopy(theirs)


def test_create_sets_the_finalizer_before_it_puts_and_makes_no_child(world):
    w = world(external=True)
    first = w.step()
    assert first.actions[0] == SetFinalizer(True)
    assert isinstance(first.actions[1], DeployApplication)
    assert first.actions[1].address == ADDRESS
    assert first.actions[1].application["route_prefix"] == "/shop/qwen"
    assert first.actions[1].application["args"]["owner"] == "shop/qwen"
    w.settle()
    assert w.condition("Ready") == ("True", "Serving")
    assert w.children == {}
    assert w.status["urls"]["http"] == "http://ray.example:8000/shop/qwen/v1"
    assert w.status["selector"]


def test_a_finalizer_that_somebody_took_away_comes_back(serving):
    w = serving(external=True)
    w.finalizers.clear()
    assert w.step().actions == (SetFinalizer(True),)


def test_the_doors_of_the_gateways_are_said_where_no_proxy_runs(serving):
    w = serving(external=True)
    seen = w.observed()
    doors = ("http://10.0.0.7:41234", "grpc://10.0.0.7:41235")
    serve = ServeState(ADDRESS, Reach.OK, "", "2.60.0", seen.serve[ADDRESS].applications, None, doors)
    w.observed = lambda: type(seen)(serve={ADDRESS: serve})
    w.step()
    assert w.status["urls"]["http"] == "http://10.0.0.7:41234/v1"
    assert w.status["urls"]["grpc"] == "10.0.0.7:41235"


def test_an_unreachable_ray_is_unknown_and_available_keeps_its_last_verdict(serving):
    w = serving(external=True)
    w.ray.reach = Reach.UNREACHABLE
    made = w.step()
    assert made.actions == ()
    assert w.condition("RayClusterReady") == ("Unknown", "Unreachable")
    assert w.condition("Available") == ("True", "Serving")
    w.ray.reach = Reach.OK
    w.step()
    assert w.condition("Ready") == ("True", "Serving")


def test_a_ray_that_never_answered_is_not_ready(world):
    w = world(external=True)
    w.ray.reach = Reach.UNREACHABLE
    w.step()
    assert w.condition("Ready") == ("False", "Unreachable")
    assert w.condition("Available")[0] == "Unknown"


def test_a_refused_token_is_said(world):
    w = world(external=True)
    w.ray.reach = Reach.AUTH_FAILED
    w.step()
    assert w.condition("RayClusterReady") == ("False", "AuthFailed")
    assert w.condition("Stalled") == ("True", "AuthFailed")
    assert "AuthFailed" in w.reasons


def test_an_incompatible_ray_is_refused_before_anything_is_put(world):
    w = world(external=True)
    w.ray.reach, w.ray.message = Reach.INCOMPATIBLE, "Ray 2.40.0 runs there; Octavo needs 2.60"
    assert w.step().actions == (SetFinalizer(True),)
    assert w.step().actions == ()
    assert w.condition("SpecValid") == ("False", "IncompatibleRay")
    assert "2.40.0" in w.message("SpecValid")
    assert w.condition("Ready") == ("False", "IncompatibleRay")
    w.ray.reach = Reach.OK
    w.settle()
    assert w.condition("SpecValid") == ("True", "Valid")


def test_a_ray_without_octavo_makes_the_spec_invalid_until_it_is_installed(world):
    w = world(external=True)
    w.step()
    w.app.status, w.app.missing_package = "DEPLOY_FAILED", "octavo_serving"
    w.app.message = "octavo_serving cannot be imported in this Ray; install this version of Octavo in its environment"
    w.step()
    assert w.condition("SpecValid") == ("False", "IncompatibleRay")
    assert "octavo_serving" in w.message("SpecValid")
    assert w.condition("Ready")[0] == "False"
    w.app.missing_package = w.app.message = ""
    w.app.run()
    w.settle()
    assert w.condition("SpecValid") == ("True", "Valid")
    assert w.condition("Ready") == ("True", "Serving")


def test_a_ray_that_came_back_without_octavo_serves_nothing_and_is_left_alone_until_it_has_it(world):
    w = world(external=True)
    w.settle()
    w.app.run()
    w.settle()
    assert w.condition("Available")[0] == "True"
    w.ray.apps.clear()
    w.ray.reach, w.ray.message = Reach.INCOMPATIBLE, "octavo_serving cannot be imported in this Ray; install it"
    for _ in range(5):
        plan = w.step()
        assert plan.actions == ()
        assert "driftCorrections" not in plan.status
    assert w.condition("SpecValid") == ("False", "IncompatibleRay")
    assert w.condition("Available") == ("False", "NoEndpoints")
    assert w.condition("ApplicationReady") == ("False", "NotDeployed")
    w.ray.reach = Reach.OK
    w.settle()
    w.app.run()
    w.settle()
    assert w.condition("Ready") == ("True", "Serving")


def test_what_serves_in_a_ray_of_another_version_is_seen_and_can_be_suspended(world):
    w = world(external=True)
    w.settle()
    w.app.run()
    w.settle()
    w.ray.reach, w.ray.message = Reach.INCOMPATIBLE, "Ray 2.61.0 runs there; Octavo needs 2.60"
    assert w.step().actions == ()
    assert w.condition("Available")[0] == "True"
    assert w.condition("SpecValid") == ("False", "IncompatibleRay")
    w.ray.apps.clear()
    w.edit(suspend=True)
    w.step()
    assert w.condition("Progressing") == ("False", "Suspended")


def test_a_foreign_application_of_our_name_is_never_touched(world):
    w = world(external=True)
    add_foreign(w, "shop.qwen")
    w.forget()
    for suspend in (None, True, False):
        if suspend is not None:
            w.edit(suspend=suspend)
        for _ in range(3):
            assert not [a for a in w.step().actions if isinstance(a, DeployApplication | RemoveApplication)]
    assert w.condition("ApplicationReady") == ("False", "ApplicationNameConflict")
    w.delete()
    assert not w.of(RemoveApplication)
    assert all(a == SetFinalizer(False) for a in w.step().actions)


def test_somebody_who_leaves_ours_out_is_corrected_and_counted(serving):
    w = serving(external=True)
    add_foreign(w)
    for _ in range(3):
        del w.ray.apps["shop.qwen"]
        assert names(w.step().actions) == ["DeployApplication"]
        w.run_apps()
        w.step()
    assert w.condition("Degraded") == ("True", "DriftFight")
    del w.ray.apps["shop.qwen"]
    assert w.step().actions == ()


def test_a_restart_of_ray_is_no_fight(serving):
    w = serving(external=True)
    for _ in range(5):
        w.ray.apps.clear()
        assert names(w.step().actions) == ["DeployApplication"]
        w.run_apps()
        w.step()
    assert w.reasons.count("ServeConfigRestored") == 5
    assert w.condition("Degraded")[0] == "False"


def test_suspend_takes_the_application_out_and_resume_puts_it_again(serving):
    w = serving(external=True)
    w.edit(suspend=True)
    assert w.step().actions == (RemoveApplication(ADDRESS, "shop.qwen"),)
    assert w.step().actions == ()
    assert w.condition("Ready") == ("False", "Suspended")
    w.run_apps()
    w.step()
    assert w.condition("Progressing") == ("False", "Suspended")
    assert w.status["replicas"] == 0
    w.edit(suspend=False)
    w.settle()
    assert w.condition("Ready") == ("True", "Serving")
    assert "DriftCorrected" not in w.reasons
    assert "ServeConfigRestored" not in w.reasons


# Deletion


def test_deletion_takes_the_application_out_waits_and_lets_go(serving):
    w = serving(external=True)
    w.delete()
    assert w.step().actions == (RemoveApplication(ADDRESS, "shop.qwen"),)
    assert w.step().actions == ()
    w.run_apps()
    assert w.step().actions == (SetFinalizer(False),)
    assert w.events == []


def test_deletion_with_ray_down_ends_after_the_deadline_and_says_what_is_left(serving):
    w = serving(external=True)
    w.ray.reach = Reach.UNREACHABLE
    w.delete()
    while w.now < w.deleted_at + 300:
        assert w.step().actions == ()
    assert w.step().actions == (SetFinalizer(False),)
    assert w.reasons == ["CleanupAbandoned"]
    assert ADDRESS in w.events[0].message


def test_the_force_delete_annotation_ends_it_at_once(serving):
    w = serving(external=True)
    w.ray.reach = Reach.UNREACHABLE
    w.delete()
    w.annotations["serving.octavo.dev/force-delete"] = "true"
    assert w.step().actions == (SetFinalizer(False),)
    assert w.reasons == ["CleanupAbandoned"]


def test_forced_where_ray_answers_the_application_is_taken_out_in_one_try_and_nobody_waits(serving):
    w = serving(external=True)
    w.delete()
    w.annotations["serving.octavo.dev/force-delete"] = "true"
    remove, release = w.step().actions
    assert (remove.address, remove.name) == (ADDRESS, "shop.qwen")
    assert remove.event_on_failure.reason == "CleanupAbandoned"
    assert release == SetFinalizer(False)
    assert w.events == [], "only what failed is told"


def test_what_could_never_be_taken_out_is_tried_a_last_time_at_the_deadline(serving):
    w = serving(external=True)
    w.delete()
    w.tick(300)
    remove, release = w.step().actions
    assert remove.event_on_failure is not None
    assert release == SetFinalizer(False)


def test_a_token_that_went_with_its_namespace_ends_the_deletion_at_once_and_says_what_is_left(serving):
    w = serving(external=True)
    w.ray.reach = Reach.AUTH_FAILED
    w.missing_secrets = ("ray-token",)
    w.delete()
    assert w.step().actions == (), "somebody may make the Secret again"
    w.terminating = True
    assert w.step().actions == (SetFinalizer(False),)
    (event,) = w.events
    assert event.reason == "CleanupAbandoned"
    for said in ("shop.qwen", ADDRESS, "Secret ray-token"):
        assert said in event.message


def test_orphan_leaves_the_application(serving):
    w = serving(external=True)
    w.edit(deletionPolicy="Orphan")
    w.settle()
    w.forget()
    w.delete()
    assert w.step().actions == (SetFinalizer(False),)
    assert w.app.status == "RUNNING"
    assert w.events == []


def test_streams_longer_than_the_deadline_are_not_called_abandoned(serving):
    w = serving(external=True)
    w.delete()
    w.step()
    w.tick(300)
    assert w.step().actions == (SetFinalizer(False),)
    assert w.events == []


def test_deletion_of_a_spec_that_is_not_understood_still_cleans_up(serving):
    w = serving(external=True)
    w.edit(engine__newerField=1)
    w.delete()
    assert w.step().actions == (RemoveApplication(ADDRESS, "shop.qwen"),)


@pytest.mark.parametrize("reach", list(Reach))
def test_deletion_always_ends(serving, reach):
    w = serving(external=True)
    w.ray.reach = reach
    w.delete()
    for _ in range(200):
        if SetFinalizer(False) in w.step().actions:
            return
    raise AssertionError("never let go")


def test_what_was_let_go_plans_nothing(serving):
    w = serving(external=True)
    w.finalizers.clear()
    w.delete()
    assert w.step().actions == ()


# octavo up


def test_octavo_up_plans_without_finalizer_or_children(world):
    w = world()
    placement = Placement(
        name="qwen",
        owner="local",
        bind=Bind.LOOPBACK,
        http_port=8000,
        grpc_port=9000,
        engine_cpus=1,
        gateway_cpus=0,
    )
    w.defaults = Defaults(image="", ray_version="2.60.0", local=Local("local", placement))
    observed = w.observed()
    w.observed = lambda: type(observed)(serve={"local": ServeState("local", Reach.OK)})
    (put,) = w.plan().actions
    assert put == DeployApplication("local", put.application, None)
    assert put.application["args"]["bind"] == "loopback"
    assert put.application["args"]["owner"] == "local"


def test_suspended_with_a_secret_that_is_missing_it_looks_less_and_less_often(serving):
    """What is there cannot be seen, so it is not known to be stopped; and nothing moves."""
    w = serving(external=True)
    w.edit(suspend=True)
    w.ray.reach = Reach.AUTH_FAILED
    w.missing_secrets = ("ray-token",)
    assert w.step().delay == 2
    w.tick(200)
    assert w.step().delay == 10
