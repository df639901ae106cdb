"""Managed mode, decided: created, edited, rolled, drifted, with parts of it lost."""

import copy

import pytest

from octavo_operator.decide.application import config_hash
from octavo_operator.model.actions import Apply, CreateSecret, Delete, DeployApplication, RemoveApplication
from octavo_operator.model.observed import Reach


def kinds(actions):
    return [action.document["kind"] if isinstance(action, Apply) else type(action).__name__ for action in actions]


def engines(app):
    (options,) = (item for item in app.config["deployments"] if item["name"] == "Engine")
    return options


def test_first_create_waits_for_the_head_before_it_puts_the_application(world):
    w = world()
    first = w.step()
    assert kinds(first.actions) == ["CreateSecret", "RayCluster", "Service"]
    assert first.delay == 2
    assert w.condition("Ready") == ("False", "RayClusterPending")
    assert w.step().actions == ()
    assert w.condition("RayClusterReady") == ("False", "HeadNotReady")
    w.head_up()
    w.ray.reach = Reach.UNREACHABLE
    assert w.step().actions == ()
    w.ray.reach = Reach.OK
    (put,) = w.step().actions
    assert isinstance(put, DeployApplication)
    assert put.proxy_location == "Disabled"
    w.step()
    assert w.condition("Ready") == ("False", "Deploying")
    assert w.condition("Progressing")[0] == "True"
    assert w.has("Reconciling")
    w.run_apps()
    made = w.step()
    assert w.condition("Ready") == ("True", "Serving")
    assert w.condition("Available") == ("True", "Serving")
    assert w.condition("Progressing") == ("False", "NewGenerationAvailable")
    assert not w.has("Reconciling")
    assert made.delay == 30
    assert w.reasons == ["RayClusterCreated", "ServeConfigApplied", "RolloutComplete"]
    assert w.status["urls"]["http"] == "http://qwen.shop.svc:8000/v1"


def test_not_ready_while_no_gateway_is_behind_the_service(world):
    w = world()
    w.settle()
    w.app.replicas["Gateway"] = []
    w.step()
    assert w.condition("RouterReady") == ("False", "NoEndpoints")
    assert w.condition("Ready")[0] == "False"
    assert w.condition("Available") == ("False", "NoEndpoints")


def test_a_live_edit_is_put_and_touches_no_child(serving):
    w = serving()
    w.edit(engine__maxNumQueuedReqs=9)
    assert kinds(w.step().actions) == ["DeployApplication"]
    assert engines(w.app)["user_config"]["settings"] == {"max_num_queued_reqs": 9}
    assert w.reasons == ["ServeConfigApplied"]


def test_a_rolling_edit_leaves_it_available_and_not_ready_until_the_roll_is_over(serving):
    w = serving({"replicas": 2})
    w.edit(engine__blockSize=32)
    w.step()
    assert w.condition("Ready") == ("False", "RollingOut")
    w.app.statuses["Engine"] = "UPDATING"
    made = w.step()
    assert w.condition("Ready") == ("False", "RollingOut")
    assert w.condition("Available") == ("True", "Serving")
    assert w.condition("Progressing") == ("True", "RollingOut")
    assert (w.status["readyReplicas"], w.status.get("updatedReplicas")) == (2, 0)
    assert made.delay == 2
    w.run_apps()
    w.step()
    assert w.condition("Ready") == ("True", "Serving")
    assert w.status["updatedReplicas"] == 2


def test_ready_of_the_last_generation_never_stands_for_the_next(serving):
    w = serving()
    w.edit(engine__blockSize=32)
    w.step()
    (ready,) = (item for item in w.status["conditions"] if item["type"] == "Ready")
    assert (ready["status"], ready["observedGeneration"]) == ("False", 2)


def test_in_place_says_it_first_then_stops_then_waits_until_it_is_gone_then_starts(serving):
    w = serving()
    old = w.cluster["metadata"]["name"]
    w.edit(rayCluster__managed={"image": "octavo:2"})
    first = w.step()
    assert [type(action) for action in first.actions] == []
    assert w.reasons == ["InterruptingService"]
    assert old in w.events[0].message
    assert w.condition("Available")[0] == "True"
    assert kinds(w.step().actions) == ["RemoveApplication"]
    assert w.step().actions == (), "streams end first"
    w.run_apps()
    assert kinds(w.step().actions) == ["Delete"]
    assert "RayCluster" not in kinds(w.step().actions), "not beside the old one"
    assert w.condition("RayClusterReady") == ("False", "RayClusterPending")
    w.finish_deletions()
    assert "RayCluster" in kinds(w.step().actions)
    (new,) = w.clusters
    assert new != old
    w.settle()
    assert w.condition("Ready") == ("True", "Serving")
    assert w.reasons.count("InterruptingService") == 1
    assert w.children["Service", "qwen"]["spec"]["selector"]["ray.io/cluster"] == new


def test_in_place_a_head_that_never_came_up_is_replaced_at_once(world):
    w = world()
    w.step()
    w.edit(rayCluster__managed={"image": "octavo:2"})
    w.step()
    assert kinds(w.step().actions) == ["Delete"]


def test_in_place_a_dead_head_holds_a_change_no_longer_than_the_drain(serving):
    w = serving({"rollout": {"drainSeconds": 60}})
    w.edit(rayCluster__managed={"image": "octavo:2"})
    w.step()
    w.ray.reach = Reach.UNREACHABLE
    assert w.step().actions == ()
    w.tick(60)
    assert w.step().actions == ()
    w.tick(30)
    assert kinds(w.step().actions) == ["Delete"]


def test_new_cluster_starts_beside_switches_when_all_is_up_drains_and_deletes_the_old(serving):
    w = serving({"rollout": {"strategy": "NewCluster"}, "replicas": 2})
    old = w.cluster["metadata"]["name"]
    w.edit(rayCluster__managed={"image": "octavo:2"})
    assert kinds(w.step().actions) == ["RayCluster"]
    (new,) = set(w.clusters) - {old}
    assert w.status["rayCluster"]["pendingHash"] != w.status["rayCluster"]["activeHash"]
    w.head_up(new)
    assert kinds(w.step().actions) == ["DeployApplication"]
    assert w.condition("Ready") == ("False", "RollingOut")
    assert w.condition("Available") == ("True", "Serving")

    app = w.rays[w.address(new)].apps["qwen"]
    app.run(engines=1)
    w.pods_follow()
    assert w.step().actions == (), "one of two engines is not all"
    app.run()
    w.report(new, readyWorkerReplicas=2)
    assert w.step().actions == (), "a gateway's pod is not ready"
    w.pods_follow()
    assert w.children["Service", "qwen"]["spec"]["selector"]["ray.io/cluster"] == old
    assert kinds(w.step().actions) == ["Service"]
    assert w.children["Service", "qwen"]["spec"]["selector"]["ray.io/cluster"] == new
    assert "TrafficSwitched" in w.reasons
    assert w.rays[w.address(old)].apps["qwen"].status == "RUNNING"

    assert w.step().actions == (), "proxies still learn of it"
    assert w.status["rayCluster"]["draining"][0]["name"] == old
    w.tick(10)
    (remove,) = w.step().actions
    assert remove == RemoveApplication(w.address(old), "qwen")
    assert w.step().actions == (), "streams end"
    w.run_apps()
    (delete,) = w.step().actions
    assert isinstance(delete, Delete)
    assert delete.name == old
    w.settle()
    assert set(w.clusters) == {new}
    assert w.condition("Ready") == ("True", "Serving")
    assert "draining" not in w.status["rayCluster"]


def test_a_new_cluster_takes_over_as_many_engines_as_the_load_had_called_for(serving):
    w = serving(
        {"rollout": {"strategy": "NewCluster"}, "autoscaling": {"minReplicas": 1, "maxReplicas": 4}, "replicas": None}
    )
    w.app.run(engines=3)
    old = w.cluster["metadata"]["name"]
    w.edit(rayCluster__managed={"image": "octavo:2"})
    w.step()
    (new,) = set(w.clusters) - {old}
    w.head_up(new)
    (put,) = w.step().actions
    (engine,) = (item for item in put.application["deployments"] if item["name"] == "Engine")
    assert engine["autoscaling_config"]["initial_replicas"] == 3
    app = w.rays[w.address(new)].apps["qwen"]
    app.run(engines=3)
    app.replicas["Engine"] = ["RUNNING", "STARTING", "STARTING"]
    w.report(new, readyWorkerReplicas=4)
    assert w.step().actions == (), "one of three engines is not all"
    app.run(engines=3)
    assert kinds(w.step().actions) == ["Service"]
    w.settle()
    assert w.condition("Ready") == ("True", "Serving")


def test_new_cluster_without_room_keeps_the_old_and_editing_back_drops_the_new(serving):
    w = serving({"rollout": {"strategy": "NewCluster", "progressDeadlineSeconds": 100}})
    old = w.cluster["metadata"]["name"]
    w.edit(rayCluster__managed={"image": "octavo:2"})
    w.step()
    (new,) = set(w.clusters) - {old}
    w.report(new, reason="0/3 nodes are available: 3 Insufficient cpu")
    w.step()
    w.tick(100)
    w.step()
    assert w.condition("Stalled") == ("True", "ProgressDeadlineExceeded")
    assert w.condition("Available") == ("True", "Serving")
    assert "Insufficient cpu" in next(e.message for e in w.events if e.reason == "ProgressDeadlineExceeded")
    w.edit(rayCluster__managed=None)
    (delete,) = w.step().actions
    assert delete.name == new
    assert w.condition("Ready") == ("True", "Serving")


def test_an_edit_during_a_roll_drops_the_pending_cluster_of_the_edit_before(serving):
    w = serving({"rollout": {"strategy": "NewCluster"}})
    old = w.cluster["metadata"]["name"]
    w.edit(rayCluster__managed={"image": "octavo:2"})
    w.step()
    (second,) = set(w.clusters) - {old}
    w.edit(rayCluster__managed={"image": "octavo:3"})
    w.step()
    assert w.is_deleting(second)
    assert not w.is_deleting(old)
    w.settle()
    assert w.cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["image"] == "octavo:3"


def test_an_active_cluster_is_never_deleted_before_another_serves(serving):
    w = serving({"rollout": {"strategy": "NewCluster"}})
    old = w.cluster["metadata"]["name"]
    w.edit(rayCluster__managed={"image": "octavo:2"})
    for _ in range(20):
        w.step()
        assert not w.is_deleting(old)


def test_a_failed_deployment_keeps_the_old_replicas_and_is_tried_again_slowly(serving):
    w = serving({"replicas": 2})
    w.edit(engine__blockSize=32)
    w.step()
    w.app.status, w.app.message = "DEPLOY_FAILED", "Failed to update the deployments ['Engine']."
    w.app.messages["Engine"] = "ignored"
    w.app.statuses["Engine"] = "DEPLOY_FAILED"
    w.app.message = 'Traceback (most recent call last):\n  File "x"\nModelError: no such file'
    made = w.step()
    assert w.condition("ApplicationReady") == ("False", "DeployFailed")
    assert w.message("ApplicationReady") == "ModelError: no such file"
    assert w.condition("Available") == ("True", "Serving")
    assert w.condition("Degraded") == ("True", "OldGenerationServing")
    assert w.status["lastError"]["reason"] == "DeployFailed"
    assert made.actions == ()
    assert "DeployFailed" in w.reasons
    w.tick(290)
    assert w.step().actions == ()
    w.tick(10)
    made_of = copy.deepcopy(w.app.config)
    (again,) = w.step().actions
    assert isinstance(again, DeployApplication)
    assert config_hash(again.application) == config_hash(made_of)
    (engine, gateway), (engine_before, gateway_before) = again.application["deployments"], made_of["deployments"]
    assert gateway == gateway_before
    assert engine == {**engine_before, "health_check_timeout_s": 11}, "Serve begins another version again, no other"
    assert "DeployRetried" in w.reasons
    w.app.status = w.app.statuses["Engine"] = "DEPLOY_FAILED"
    assert w.step().actions == (), "not again at once"
    w.tick(300)
    (once_more,) = w.step().actions
    assert isinstance(once_more, DeployApplication)
    assert once_more.application == made_of


def test_a_head_that_restarts_makes_nothing_false_that_still_holds(serving):
    w = serving({"replicas": 2})
    w.ray.reach = Reach.UNREACHABLE
    w.step()
    assert w.condition("RayClusterReady") == ("Unknown", "Unreachable")
    assert w.condition("Ready") == ("Unknown", "Unreachable")
    assert w.condition("Available") == ("True", "Serving")
    assert (w.status["replicas"], w.status["readyReplicas"]) == (2, 2)
    assert w.reasons == ["RayUnreachable"]
    w.step()
    assert w.reasons == ["RayUnreachable"], "said once"
    w.tick(120)
    w.step()
    assert w.condition("RayClusterReady") == ("False", "Unreachable"), "it lasts"
    w.step()
    assert w.condition("RayClusterReady") == ("False", "Unreachable")
    assert w.condition("Available") == ("True", "Serving")
    w.ray.reach = Reach.OK
    w.step()
    assert w.condition("Ready") == ("True", "Serving")


def test_available_ends_with_the_gateways_even_while_ray_is_silent(serving):
    w = serving()
    w.ray.reach = Reach.UNREACHABLE
    w.app.replicas["Gateway"] = []
    w.step()
    assert w.condition("Available") == ("False", "NoEndpoints")


def test_a_lost_serve_configuration_is_restored(serving):
    w = serving()
    w.ray.apps.clear()
    assert kinds(w.step().actions) == ["DeployApplication"]
    assert w.reasons == ["ServeConfigRestored"]
    assert "driftCorrections" not in w.status


def test_drift_is_corrected_three_times_in_ten_minutes_and_then_not(serving):
    w = serving()
    mine = copy.deepcopy(w.app.config)
    for turn in range(3):
        w.app.config = {**mine, "args": {**mine["args"], "model_uri": "hf://other/model"}}
        assert kinds(w.step().actions) == ["DeployApplication"], turn
        assert w.app.config["args"] == mine["args"]
        w.run_apps()
        w.step()
        w.run_apps()
    assert w.reasons.count("DriftCorrected") == 3
    assert w.condition("Degraded") == ("True", "DriftFight")
    w.app.config = {**mine, "args": {**mine["args"], "model_uri": "hf://other/model"}}
    assert w.step().actions == ()
    assert w.reasons.count("DriftFight") == 1
    w.tick(600)
    assert kinds(w.step().actions) == ["DeployApplication"]
    w.run_apps()
    w.step()
    assert w.condition("Degraded") == ("False", "AsAsked")


def test_an_edit_is_not_taken_for_drift(serving):
    w = serving()
    for size in (32, 64, 128, 16):
        w.edit(engine__blockSize=size)
        w.settle()
    assert "DriftCorrected" not in w.reasons
    assert w.condition("Degraded") == ("False", "AsAsked")


def test_a_put_that_failed_is_not_taken_for_drift(serving):
    w = serving()
    w.edit(engine__blockSize=32)
    made = w.plan()
    w.status = copy.deepcopy(dict(made.status))  # the status was written, the put was not done
    made = w.step()
    assert kinds(made.actions) == ["DeployApplication"]
    assert "DriftCorrected" not in w.reasons


def test_a_deleted_ray_cluster_is_made_again_once_it_is_gone(serving):
    w = serving()
    w.delete_cluster(w.cluster["metadata"]["name"])
    assert w.step().actions == ()
    assert w.condition("RayClusterReady") == ("False", "RayClusterPending")
    w.finish_deletions()
    assert kinds(w.step().actions) == ["RayCluster"]
    w.settle()
    assert w.condition("Ready") == ("True", "Serving")


@pytest.mark.parametrize(
    "child", [("Service", "qwen"), ("PodDisruptionBudget", "qwen-engine"), ("NetworkPolicy", "qwen-ray")]
)
def test_a_deleted_or_edited_child_is_set_right(serving, child):
    w = serving({"replicas": 3, "rayCluster": {"managed": {"networkPolicy": True}}})
    kind, _name = child
    saved = w.remove(*child)
    assert kinds(w.step().actions) == [kind]
    assert w.children[child]["spec"] == saved["spec"]
    w.forget()
    selector = "podSelector" if kind == "NetworkPolicy" else "selector"
    w.children[child]["spec"][selector] = {"someone": "else"}
    assert kinds(w.step().actions) == [kind]
    assert w.reasons == ["DriftCorrected"]
    assert w.step().actions == ()


def test_a_lost_token_secret_is_made_again(serving):
    w = serving()
    w.remove("Secret", "qwen-ray-token")
    (action,) = w.step().actions
    assert isinstance(action, CreateSecret)
    assert action.keys == ("auth_token",)
