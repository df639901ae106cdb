"""Objects of somebody else that have a name which a managed deployment needs: nothing of theirs is touched."""

import pytest

from octavo_operator.model import kinds
from octavo_operator.model.actions import Apply
from octavo_operator.model.resource import parse_spec
from octavo_operator.objects.ownership import is_ours, needed_objects

THEIRS = [
    ("Service", "qwen"),
    ("Secret", "qwen-ray-token"),
    ("PodDisruptionBudget", "qwen-engine"),
    ("NetworkPolicy", "qwen-ray"),
    ("RayCluster", "qwen-01234567"),
]


@pytest.mark.parametrize("theirs", THEIRS)
def test_an_object_in_the_way_is_named_with_what_to_do_and_nothing_is_made(world, theirs):
    w = world()
    w.foreign = (theirs,)
    made = w.step()
    assert made.actions == ()
    assert made.delay == 10
    assert w.condition("SpecValid") == ("False", "ObjectNameConflict")
    assert w.condition("Ready") == ("False", "ObjectNameConflict")
    assert w.condition("Stalled") == ("True", "ObjectNameConflict")
    assert w.condition("Progressing") == ("False", "ObjectNameConflict")
    kind, name = theirs
    assert f"{kind} {name}" in w.message("SpecValid")
    handed = f"kubectl label --namespace shop {kind.lower()} {name} serving.octavo.dev/deployment=qwen"
    assert handed in w.message("SpecValid")
    assert w.reasons == ["ObjectNameConflict"]
    assert w.status["lastError"]["reason"] == "ObjectNameConflict"
    again = w.step()
    assert (again.actions, again.events) == ((), ()), "said once"


def test_a_name_conflict_blocks_a_change_until_it_is_gone(serving):
    w = serving()
    w.edit(replicas=3)
    w.foreign = (("PodDisruptionBudget", "qwen-engine"),)
    for _ in range(3):
        assert w.step().actions == ()
    assert w.condition("Available") == ("True", "Serving")
    assert w.condition("Degraded") == ("True", "OldGenerationServing")
    assert w.condition("Ready") == ("False", "ObjectNameConflict")
    w.foreign = ()
    w.settle()
    assert w.condition("SpecValid") == ("True", "Valid")
    assert w.condition("Ready") == ("True", "Serving")
    assert w.status["readyReplicas"] == 3
    assert ("PodDisruptionBudget", "qwen-engine") in w.children
    assert "lastError" not in w.status


def test_several_objects_in_the_way_are_all_named(world):
    w = world()
    w.foreign = (("Secret", "qwen-ray-token"), ("Service", "qwen"))
    w.step()
    assert "Secret qwen-ray-token and Service qwen" in w.message("SpecValid")


def test_a_new_object_is_made_and_one_that_is_there_is_changed_by_its_uid(serving):
    w = serving({"replicas": 2})
    w.remove("PodDisruptionBudget", "qwen-engine")
    w.children["Service", "qwen"]["spec"]["type"] = "NodePort"
    applied = {action.document["kind"]: action.uid for action in w.step().actions if isinstance(action, Apply)}
    uid = w.children["Service", "qwen"]["metadata"]["uid"]
    assert applied == {"Service": uid, "PodDisruptionBudget": ""}


@pytest.mark.parametrize(
    ("labels", "owners", "ours"),
    [
        ({}, [], False),
        ({"serving.octavo.dev/deployment": "other"}, [], False),
        ({"serving.octavo.dev/deployment": "qwen"}, [], True),
        ({"serving.octavo.dev/deployment": "qwen"}, ["a deployment that was before"], True),
        ({}, ["u0"], True),
        ({}, ["somebody"], False),
    ],
)
def test_an_object_is_ours_by_label_or_by_owner(world, labels, owners, ours):
    metadata = {"name": "qwen", "labels": labels, "ownerReferences": [{"uid": uid} for uid in owners]}
    assert is_ours({"metadata": metadata}, world().resource()) is ours


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({}, []),
        ({"replicas": 2}, ["PodDisruptionBudget"]),
        ({"autoscaling": {"minReplicas": 0, "maxReplicas": 1}}, []),
        ({"autoscaling": {"minReplicas": 1, "maxReplicas": 2}}, ["PodDisruptionBudget"]),
        ({"rayCluster": {"managed": {"networkPolicy": True}}}, ["NetworkPolicy"]),
    ],
)
def test_only_names_that_the_spec_asks_for_are_looked_for(serving, spec, wanted):
    w = serving(spec)
    found = needed_objects(w.resource().key, parse_spec(w.resource()))
    assert [kind.kind for kind, _ in found] == ["Secret", "RayCluster", "Service", *wanted]
    assert dict(found)[kinds.RAY_CLUSTER] == w.cluster["metadata"]["name"]
    assert {(kind.kind, name) for kind, name in found if kind != kinds.RAY_CLUSTER} >= w.children.keys()


def test_a_suspended_deployment_needs_no_name(serving):
    w = serving()
    w.edit(suspend=True)
    assert needed_objects(w.resource().key, parse_spec(w.resource())) == ()
