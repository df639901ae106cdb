"""External mode and ``octavo up``: create, correct, suspend; incompatible and foreign parts."""

import copy

from octavo_api.resource.serve_config import Bind, Placement
from octavo_operator.model.actions import DeployApplication, RemoveApplication, SetFinalizer
from octavo_operator.model.defaults import Defaults, Local
from octavo_operator.model.observed import Reach, ServeState
from octavo_testing.operator.plan_world import EXTERNAL as ADDRESS
from octavo_testing.operator.plan_world import kinds


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


def test_a_removed_finalizer_is_set_again(serving):
    w = serving(external=True)
    w.finalizers.clear()
    assert w.step().actions == (SetFinalizer(True),)


def test_urls_are_the_gateways_listeners_if_no_proxy_runs(serving):
    w = serving(external=True)
    seen = w.observed()
    doors = ("http://10.0.0.7:41234", "grpc://10.0.0.7:41235")
    serve = ServeState(ADDRESS, Reach.OK, "", "2.60.0", seen.serve[ADDRESS].applications, None, doors)
    w.observed = lambda: type(seen)(serve={ADDRESS: serve})
    w.step()
    assert w.status["urls"]["http"] == "http://10.0.0.7:41234/v1"
    assert w.status["urls"]["grpc"] == "10.0.0.7:41235"


def test_an_unreachable_ray_is_unknown_and_available_stays(serving):
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


def test_a_rejected_token_is_reported(world):
    w = world(external=True)
    w.ray.reach = Reach.AUTH_FAILED
    w.step()
    assert w.condition("RayClusterReady") == ("False", "AuthFailed")
    assert w.condition("Stalled") == ("True", "AuthFailed")
    assert "AuthFailed" in w.reasons


def test_nothing_is_deployed_to_an_incompatible_ray(world):
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


def test_a_ray_that_lost_octavo_serves_nothing_until_it_is_installed(world):
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


def test_an_application_on_another_ray_version_can_be_suspended(world):
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


def test_a_put_of_another_client_without_ours_is_corrected_and_counted(serving):
    w = serving(external=True)
    add_foreign(w)
    for _ in range(3):
        del w.ray.apps["shop.qwen"]
        assert kinds(w.step().actions) == ["DeployApplication"]
        w.run_apps()
        w.step()
    assert w.condition("Degraded") == ("True", "DriftFight")
    del w.ray.apps["shop.qwen"]
    assert w.step().actions == ()


def test_a_restart_of_ray_is_no_fight(serving):
    w = serving(external=True)
    for _ in range(5):
        w.ray.apps.clear()
        assert kinds(w.step().actions) == ["DeployApplication"]
        w.run_apps()
        w.step()
    assert w.reasons.count("ServeConfigRestored") == 5
    assert w.condition("Degraded")[0] == "False"


def test_suspend_removes_the_application_and_resume_deploys_it(serving):
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


def test_suspended_without_its_secret_it_reconciles_less_often(serving):
    """Without its token the operator cannot know if the application has stopped."""
    w = serving(external=True)
    w.edit(suspend=True)
    w.ray.reach = Reach.AUTH_FAILED
    w.missing_secrets = ("ray-token",)
    assert w.step().delay == 2
    w.tick(200)
    assert w.step().delay == 10
