"""Suspend, resume and scaling of a managed deployment."""

from octavo_testing.operator.plan_world import kinds


def test_suspend_lets_streams_end_then_deletes_and_resume_serves_again(serving):
    w = serving({"replicas": 2})
    w.edit(suspend=True)
    assert kinds(w.step().actions) == ["Delete", "RemoveApplication"], "the budget goes, or nothing could"
    assert w.condition("Ready") == ("False", "Suspended")
    assert w.condition("Progressing") == ("True", "Suspending")
    assert w.step().actions == ()
    w.run_apps()
    assert kinds(w.step().actions) == ["Delete"]
    w.finish_deletions()
    made = w.step()
    assert made.actions == ()
    assert w.condition("Progressing") == ("False", "Suspended")
    assert w.condition("Available") == ("False", "Suspended")
    assert not w.has("Stalled")
    assert w.condition("Degraded")[0] == "False"
    assert w.status["replicas"] == 0
    assert w.reasons.count("Suspended") == 1
    assert w.step().delay == 30
    assert ("Service", "qwen") in w.children, "its address is kept"
    w.edit(suspend=False)
    w.settle()
    assert w.condition("Ready") == ("True", "Serving")


def test_suspend_works_although_a_secret_is_missing(serving):
    w = serving()
    w.missing_secrets = ("hub",)
    w.edit(suspend=True)
    assert kinds(w.step().actions) == ["RemoveApplication"]


def test_scale_to_zero_is_ready_and_not_available_without_autoscaling(serving):
    w = serving({"replicas": 2})
    w.edit(replicas=0)
    w.settle()
    assert w.condition("Ready") == ("True", "ScaledToZero")
    assert w.condition("Available") == ("False", "ScaledToZero")
    assert w.status["replicas"] == 0
    assert w.status["selector"]


def test_autoscaled_to_zero_is_available_as_gateways_hold_requests(serving):
    w = serving({"autoscaling": {"minReplicas": 0, "maxReplicas": 4}})
    w.run_apps(engines=0)
    w.step()
    assert w.condition("Ready") == ("True", "ScaledToZero")
    assert w.condition("Available") == ("True", "ScaledToZero")


def test_kubectl_scale_deploys_the_count_with_an_event(serving):
    w = serving()
    w.edit(replicas=3)
    made = w.step()
    assert set(kinds(made.actions)) == {"DeployApplication", "PatchCluster", "PodDisruptionBudget"}
    assert w.reasons == ["Scaled"]
    assert w.events[0].message.endswith("1 → 3")
    w.app.statuses = {"Engine": "UPSCALING", "Gateway": "HEALTHY"}
    w.step()
    assert w.condition("Ready") == ("False", "Scaling")
    assert w.condition("Available")[0] == "True"
    w.run_apps()
    w.step()
    assert w.condition("Ready") == ("True", "Serving")
    assert w.status["replicas"] == 3


def test_a_load_that_autoscaling_follows_is_no_rollout(serving):
    w = serving({"autoscaling": {"minReplicas": 1, "maxReplicas": 4}})
    w.app.run(engines=4)
    w.app.statuses["Engine"] = "UPSCALING"
    made = w.step()
    assert w.condition("Ready") == ("True", "Serving")
    assert made.delay == 30
    assert w.status["replicas"] == 4
    assert w.children["PodDisruptionBudget", "qwen-engine"]["spec"]["minAvailable"] == 3


def test_unschedulable_replicas_are_reported_before_the_deadline(serving):
    w = serving()
    w.edit(replicas=2)
    w.step()
    w.app.statuses["Engine"] = "UPSCALING"
    w.app.replicas["Engine"] = ["RUNNING", "STARTING"]
    w.app.messages["Engine"] = "Deployment 'Engine' has 1 replicas that have taken more than 30s to be scheduled."
    w.step()
    assert w.condition("Progressing") == ("True", "InsufficientCapacity")
    assert "InsufficientCapacity" in w.reasons
    assert not w.has("Stalled")


def test_streams_that_never_end_hold_a_stop_no_longer_than_the_drain(serving):
    w = serving({"rollout": {"drainSeconds": 60}})
    w.edit(suspend=True)
    w.step()
    w.tick(80)
    assert w.step().actions == ()
    w.tick(10)
    assert kinds(w.step().actions) == ["Delete"]


def test_with_autoscaling_one_engine_is_enough_to_be_ready(serving):
    w = serving({"autoscaling": {"minReplicas": 3, "maxReplicas": 5}})
    w.app.replicas["Engine"] = ["RUNNING"]
    w.step()
    assert w.condition("Ready") == ("True", "Serving")
