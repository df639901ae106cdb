"""Corrections of lost or changed objects and configurations of a managed deployment."""

import copy

import pytest

from octavo_operator.model.actions import (
    CreateSecret,
    PatchCluster,
)
from octavo_testing.operator.plan_world import kinds


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


def test_a_deleted_ray_cluster_is_created_again_once_it_is_gone(serving):
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
def test_a_deleted_or_edited_child_is_reverted(serving, child):
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


def test_a_lost_token_secret_is_created_again(serving):
    w = serving()
    w.remove("Secret", "qwen-ray-token")
    (action,) = w.step().actions
    assert isinstance(action, CreateSecret)
    assert action.keys == ("auth_token",)


def test_an_edited_template_is_reverted_by_a_guarded_patch(serving):
    w = serving()
    group = w.group("engine")
    group["template"]["spec"]["terminationGracePeriodSeconds"] = 5
    (patch,) = w.step().actions
    assert isinstance(patch, PatchCluster)
    assert [operation["op"] for operation in patch.operations] == ["test", "test", "add"]
    assert w.group("engine")["template"]["spec"]["terminationGracePeriodSeconds"] == 3630
    assert w.group("engine")["replicas"] == 1
    assert w.reasons == ["DriftCorrected"]
