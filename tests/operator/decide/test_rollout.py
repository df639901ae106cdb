"""Rollout of an edit in the same cluster: live, rolling and failed changes."""

import copy

from octavo_operator.decide.application import config_hash
from octavo_operator.model.actions import (
    DeployApplication,
)
from octavo_testing.operator.plan_world import kinds


def engines(app):
    (options,) = (item for item in app.config["deployments"] if item["name"] == "Engine")
    return options


def test_a_live_edit_is_deployed_and_changes_no_child(serving):
    w = serving()
    w.edit(engine__maxNumQueuedReqs=9)
    assert kinds(w.step().actions) == ["DeployApplication"]
    assert engines(w.app)["user_config"]["settings"] == {"max_num_queued_reqs": 9}
    assert w.reasons == ["ServeConfigApplied"]


def test_a_rolling_edit_is_available_and_not_ready_until_complete(serving):
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


def test_a_failed_deployment_keeps_old_replicas_and_is_retried_slowly(serving):
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


def test_a_roll_without_room_keeps_serving_and_names_the_remedy(serving):
    w = serving()
    w.edit(engine={"maxNumSeqs": 4})
    w.step()
    w.app.statuses["Engine"] = "UPDATING"
    w.app.replicas["Engine"], w.app.targets["Engine"] = ["RUNNING", "STARTING"], 1
    w.app.messages["Engine"] = "Deployment 'Engine' has 1 replicas that have taken more than 30s to be scheduled."
    w.step()
    assert w.condition("Available") == ("True", "Serving")
    assert w.condition("Progressing") == ("True", "InsufficientCapacity")
    assert "maxSurgePercent" in w.message("Progressing")
