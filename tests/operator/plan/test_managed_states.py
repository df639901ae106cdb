"""Managed mode, decided: suspended, scaled, without what it needs, after an upgrade of the operator, deleted."""

import copy

import pytest

from octavo_operator.model.actions import Apply, PatchCluster
from octavo_operator.model.defaults import Defaults
from octavo_operator.model.observed import Reach


def kinds(actions):
    return [action.document["kind"] if isinstance(action, Apply) else type(action).__name__ for action in actions]


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


def test_autoscaling_to_zero_stays_available_because_the_gateway_holds_requests(serving):
    w = serving({"autoscaling": {"minReplicas": 0, "maxReplicas": 4}})
    w.run_apps(engines=0)
    w.step()
    assert w.condition("Ready") == ("True", "ScaledToZero")
    assert w.condition("Available") == ("True", "ScaledToZero")


def test_kubectl_scale_puts_the_count_and_says_so(serving):
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


def test_replicas_that_find_no_node_are_said_and_nothing_stalls_before_the_deadline(serving):
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


def test_a_roll_without_room_to_surge_serves_on_and_says_what_would_make_it_go_on(serving):
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


def test_progress_puts_the_deadline_off(world):
    w = world({"rollout": {"progressDeadlineSeconds": 100}})
    w.step()
    w.tick(90)
    w.step()
    w.head_up()
    w.tick(20)
    w.step()
    assert not w.has("Stalled")
    w.step()
    w.tick(105)
    made = w.step()
    assert w.condition("Stalled") == ("True", "ProgressDeadlineExceeded")
    assert w.condition("Progressing") == ("False", "ProgressDeadlineExceeded")
    assert made.delay == 10
    w.run_apps()
    w.step()
    assert w.condition("Ready") == ("True", "Serving")
    assert not w.has("Stalled")


def test_waiting_is_looked_at_less_and_less(world):
    w = world()
    w.step()
    delays = []
    for _ in range(30):
        w.tick(10)
        delays.append(w.step().delay)
    assert delays == sorted(delays)
    assert (delays[0], delays[-1]) == (2, 10)


def test_without_kuberay_it_says_the_command_and_goes_on_when_it_comes(world):
    w = world()
    w.install_kuberay(installed=False)
    w.step()
    assert w.condition("RayClusterReady") == ("False", "KubeRayNotInstalled")
    assert "helm install kuberay-operator" in w.message("RayClusterReady")
    assert w.condition("Stalled") == ("True", "KubeRayNotInstalled")
    assert "KubeRayNotInstalled" in w.reasons
    w.install_kuberay(installed=True)
    w.settle()
    assert w.condition("Ready") == ("True", "Serving")


@pytest.mark.parametrize(
    ("missing", "reason"),
    [({"missing_secrets": ("hub/HF_TOKEN",)}, "SecretNotFound"), ({"missing_claims": ("m",)}, "ClaimNotFound")],
)
def test_what_the_spec_names_and_is_missing_holds_everything_and_heals_without_an_edit(world, missing, reason):
    w = world()
    for name, value in missing.items():
        setattr(w, name, value)
    made = w.step()
    assert made.actions == ()
    assert made.delay == 10
    assert w.condition("SpecValid") == ("False", reason)
    assert w.condition("Ready") == ("False", reason)
    assert next(iter(missing.values()))[0] in w.message("SpecValid")
    w.missing_secrets = w.missing_claims = ()
    w.settle()
    assert w.condition("SpecValid") == ("True", "Valid")
    assert w.condition("Ready") == ("True", "Serving")


def test_a_missing_secret_tears_nothing_down(serving):
    w = serving()
    w.missing_secrets = ("hub",)
    w.edit(model__secretRef={"name": "hub"}, model__uri="hf://a/b")
    for _ in range(5):
        assert w.step().actions == ()
    assert w.condition("Available") == ("True", "Serving")
    assert w.condition("Degraded") == ("True", "OldGenerationServing")
    assert "InterruptingService" not in w.reasons


def test_an_invalid_spec_touches_nothing_and_the_old_generation_serves_on(serving):
    w = serving()
    before = w.status
    w.edit(engine__blokSize=32)
    made = w.step()
    assert made.actions == ()
    assert w.condition("SpecValid") == ("False", "InvalidSpec")
    assert "did you mean" in w.message("SpecValid")
    assert w.condition("Ready") == ("False", "InvalidSpec")
    assert w.condition("Available") == ("True", "Serving")
    assert w.condition("Stalled") == ("True", "InvalidSpec")
    assert w.status["observedGeneration"] == 2
    assert w.status["configHash"] == before["configHash"]
    assert w.reasons == ["InvalidSpec"]
    w.step()
    assert w.reasons == ["InvalidSpec"], "said once"
    w.edit(engine__blokSize=None)
    w.settle()
    assert w.condition("Ready") == ("True", "Serving")
    assert w.reasons == ["InvalidSpec", "RolloutComplete"], "nothing was applied anew"


def test_an_application_of_another_owner_is_not_touched(world):
    w = world()
    w.step()
    w.head_up()
    w.step()
    w.app.config["args"]["owner"] = "shop/other"
    w.forget()
    made = w.step()
    assert made.actions == ()
    assert w.condition("ApplicationReady") == ("False", "ApplicationNameConflict")
    assert w.condition("Stalled") == ("True", "ApplicationNameConflict")
    assert w.condition("Available")[0] == "False"


def test_an_operator_upgrade_changes_no_child_and_no_configuration(serving):
    w = serving({"replicas": 2})
    w.defaults = Defaults(
        image="octavo:9", ray_version="2.99.0", operator_namespace="octavo", operator_labels={"app": "op"}
    )
    w.app.config["deployments"][0]["user_config"]["from_the_old_operator"] = True
    w.status["configHash"] = _hash_of(w.app.config)
    made = w.step()
    assert made.actions == ()
    assert w.condition("Ready") == ("True", "Serving")
    w.edit(endpoint__service={"type": "NodePort"})
    w.step()
    assert w.cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["image"] == "octavo:1"


def _hash_of(config):
    from octavo_operator.decide.application import config_hash

    return config_hash(config)


def test_a_new_cluster_takes_the_new_default_image(serving):
    w = serving()
    w.defaults = Defaults(image="octavo:9", ray_version="2.99.0")
    w.edit(resources={"limits": {"cpu": 3}})
    w.settle()
    assert w.cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["image"] == "octavo:9"
    assert w.cluster["spec"]["rayVersion"] == "2.99.0"


def test_an_edited_template_is_set_back_by_a_guarded_patch(serving):
    w = serving()
    group = w.group("engine")
    group["template"]["spec"]["terminationGracePeriodSeconds"] = 5
    (patch,) = w.step().actions
    assert isinstance(patch, PatchCluster)
    assert [operation["op"] for operation in patch.operations] == ["test", "test", "add"]
    assert w.group("engine")["template"]["spec"]["terminationGracePeriodSeconds"] == 3630
    assert w.group("engine")["replicas"] == 1
    assert w.reasons == ["DriftCorrected"]


def test_a_cluster_made_by_another_version_keeps_its_templates(serving):
    w = serving()
    w.cluster["metadata"]["annotations"]["serving.octavo.dev/template-hash"] = "of-an-older-version"
    w.group("engine")["template"]["spec"]["terminationGracePeriodSeconds"] = 60
    assert w.step().actions == ()


def test_a_namespace_that_ends_is_left_alone(serving):
    w = serving()
    w.terminating = True
    w.remove_children()
    before = copy.deepcopy(w.status)
    made = w.step()
    assert made.actions == ()
    assert w.status == before


def test_a_managed_deletion_needs_nothing(serving):
    w = serving()
    w.delete()
    made = w.step()
    assert made.actions == ()
    assert made.events == ()


def test_a_template_edited_after_an_operator_upgrade_goes_back_to_the_image_it_was_made_with(serving):
    w = serving()
    w.defaults = Defaults(image="octavo:9", ray_version="2.99.0")
    w.group("engine")["template"]["spec"]["terminationGracePeriodSeconds"] = 5
    w.step()
    template = w.group("engine")["template"]["spec"]
    assert (template["terminationGracePeriodSeconds"], template["containers"][0]["image"]) == (3630, "octavo:1")
    assert w.cluster["spec"]["rayVersion"] == "2.60.0"


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


def test_without_service_and_status_the_oldest_cluster_has_the_traffic(serving):
    w = serving({"rollout": {"strategy": "NewCluster"}})
    old = w.cluster["metadata"]["name"]
    w.edit(rayCluster__managed={"image": "octavo:2"})
    w.step()
    w.edit(rayCluster__managed={"image": "octavo:3"})
    w.remove_children()
    w.status = {}
    w.step()
    assert not w.is_deleting(old)
    assert w.children["Service", "qwen"]["spec"]["selector"]["ray.io/cluster"] == old


def test_available_follows_the_gateways_while_ray_does_not_answer(serving):
    w = serving()
    w.ready_gateways = lambda: 0
    w.step()
    assert w.condition("Available") == ("False", "NoEndpoints")
    w.ray.reach = Reach.UNREACHABLE
    w.step()
    assert w.condition("Available") == ("False", "NoEndpoints")
    w.ready_gateways = lambda: 1
    w.step()
    assert w.condition("Available") == ("True", "EndpointsReady")
    assert w.condition("Ready")[0] != "True"
    w.ray.reach = Reach.OK
    w.step()
    assert w.condition("Available") == ("True", "Serving")


def test_gateways_do_not_make_engines_that_were_last_seen_gone(serving):
    w = serving({"replicas": 2})
    w.app.replicas["Engine"] = []
    w.step()
    assert w.condition("Available") == ("False", "ReplicasMissing")
    w.ray.reach = Reach.UNREACHABLE
    w.step()
    assert w.condition("Available") == ("False", "ReplicasMissing")


def test_under_an_invalid_spec_available_follows_the_gateways_both_ways(serving):
    w = serving()
    w.edit(engine__blockSize="many")
    for gateways, available in ((0, "False"), (1, "True"), (0, "False")):
        w.ready_gateways = lambda count=gateways: count
        w.step()
        assert w.condition("Ready") == ("False", "InvalidSpec")
        assert w.condition("Available")[0] == available


def test_an_edited_token_stops_nothing_and_says_what_to_do(serving):
    """Edited back it heals; only a deleted one is lost."""
    w = serving()
    secret = w.children["Secret", "qwen-ray-token"]
    secret["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    w.ray.reach = Reach.AUTH_FAILED
    for _ in range(3):
        assert w.step().actions == ()
    assert w.condition("RayClusterReady") == ("False", "AuthFailed")
    assert w.condition("Available") == ("True", "Serving")
    assert "InterruptingService" not in w.reasons
    w.ray.reach = Reach.OK
    w.settle()
    assert w.condition("Ready") == ("True", "Serving")
