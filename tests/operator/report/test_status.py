"""The status: by the CRD's schema, with times that move only when something does, and nothing secret or endless."""

import itertools
import json

import jsonschema

from octavo_api.schema import crd
from octavo_operator.model import conditions, memory
from octavo_operator.model.conditions import Reason, Type, no, yes
from octavo_operator.model.observed import Reach


def validate(status):
    schema = crd.schema()["properties"]["status"]

    def closed(node):
        if isinstance(node, dict):
            if node.get("type") == "object" and "properties" in node:
                node.setdefault("additionalProperties", False)
            for value in list(node.values()):
                closed(value)

    closed(schema)
    jsonschema.validate(status, schema)


def test_every_status_of_a_life_fits_the_schema_and_nothing_is_pruned(world):
    w = world({"rollout": {"strategy": "NewCluster", "progressDeadlineSeconds": 60}, "replicas": 2})

    def look(rounds=1):
        for _ in range(rounds):
            w.step()
            validate(w.status)

    look(2)
    w.head_up()
    look(2)
    w.run_apps()
    look(2)
    w.edit(rayCluster__managed={"image": "octavo:2"})
    look(2)
    w.head_up()
    look(2)
    w.tick(100)
    look(2)
    w.run_apps()
    look(3)
    assert "draining" in w.status["rayCluster"]
    w.settle()
    w.app.config["args"]["model_uri"] = "hf://x/y"
    look()
    assert "driftCorrections" in w.status
    w.app.status = "DEPLOY_FAILED"
    look()
    assert "lastError" in w.status
    w.edit(engine__nothing=1)
    look()
    w.edit(engine__nothing=None, suspend=True)
    look(2)
    w.run_apps()
    look(2)
    w.finish_deletions()
    look(2)


def test_an_external_status_fits_the_schema(serving):
    w = serving(external=True)
    validate(w.status)
    w.ray.reach = Reach.UNREACHABLE
    w.step()
    validate(w.status)


def test_transition_times_move_only_with_the_state():
    first = conditions.update({}, {Type.READY: no(Reason.DEPLOYING)}, 1, 100)
    before = {condition.type: condition for condition in first}
    second = conditions.update(before, {Type.READY: no(Reason.ROLLING_OUT)}, 2, 200)
    assert (second[0].since, second[0].generation) == (100, 2)
    third = conditions.update({"Ready": second[0]}, {Type.READY: yes(Reason.SERVING)}, 2, 300)
    assert third[0].since == 300


def test_a_status_at_rest_stays_as_it_is(serving):
    w = serving({"replicas": 2})
    before = json.dumps(w.status, sort_keys=True)
    for _ in range(5):
        w.tick(3600)
        made = w.step()
        assert (made.actions, made.events) == ((), ())
        assert json.dumps(w.status, sort_keys=True) == before


def test_counts_and_selector_of_the_scale_subresource(serving):
    w = serving({"replicas": 3})
    w.app.replicas["Engine"] = ["RUNNING", "STARTING", "STOPPING"]
    w.step()
    assert (w.status["replicas"], w.status["readyReplicas"]) == (3, 1)
    assert w.status["selector"] == "serving.octavo.dev/deployment=qwen,app.kubernetes.io/component=engine"
    assert w.status["applications"][0]["deployments"][0] == {
        "name": "Engine",
        "status": "HEALTHY",
        "replicas": {"RUNNING": 1, "STARTING": 1, "STOPPING": 1},
    }


def test_counts_at_zero_are_said(serving):
    w = serving({"replicas": 0})
    assert (w.status["replicas"], w.status["readyReplicas"], w.status["updatedReplicas"]) == (0, 0, 0)


def test_missing_replicas_degrade(serving):
    w = serving({"replicas": 3})
    w.app.replicas["Engine"] = ["RUNNING", "RUNNING"]
    w.step()
    assert w.condition("Ready") == ("False", "ReplicasMissing")
    assert w.condition("Degraded") == ("True", "ReplicasMissing")
    assert w.condition("Available") == ("True", "Serving")


def test_an_unhealthy_application_is_not_ready_and_may_be_available(serving):
    w = serving({"replicas": 2})
    w.app.status, w.app.replicas["Engine"] = "UNHEALTHY", ["RUNNING"]
    w.step()
    assert w.condition("ApplicationReady") == ("False", "Unhealthy")
    assert w.condition("Ready") == ("False", "Unhealthy")
    assert w.condition("Available") == ("True", "Serving")
    assert w.condition("Degraded") == ("True", "ReplicasMissing")


def test_messages_are_cut(serving):
    w = serving()
    w.app.status, w.app.message = "DEPLOY_FAILED", "x" * 100_000
    w.step()
    assert len(json.dumps(w.status)) < 20_000
    validate(w.status)


def test_a_last_error_stays_until_it_serves_again(serving):
    w = serving()
    w.app.status, w.app.message = "DEPLOY_FAILED", "no such file"
    w.step()
    since = w.status["lastError"]["since"]
    w.tick(10)
    w.step()
    assert w.status["lastError"]["since"] == since
    w.app.status = "DEPLOYING"
    w.step()
    assert w.status["lastError"]["message"] == "no such file"
    w.run_apps()
    w.step()
    assert "lastError" not in w.status


def test_a_status_that_cannot_be_read_is_as_none():
    for status in (
        {"conditions": "x", "rayCluster": 3, "progress": [], "lastError": {"since": "never"}},
        {"conditions": [None, {"type": "Ready"}, {"type": "Ready", "status": "Maybe"}]},
        {"rayCluster": {"draining": [{"name": "a", "since": "?"}, 4]}, "driftCorrections": [1, "x"]},
        {"configGeneration": "7"},
    ):
        assert memory.read_status(status) == memory.Memory()


def test_a_status_survives_a_plan_that_starts_with_a_broken_one(world):
    w = world()
    w.status = {"conditions": [{"type": "Ready", "status": "True"}], "rayCluster": "x", "configHash": 5}
    w.settle()
    assert w.condition("Ready") == ("True", "Serving")


def test_every_reason_has_its_line_in_the_source():
    """docs/troubleshooting.md is made of them."""
    import ast
    import inspect

    (body,) = [n.body for n in ast.parse(inspect.getsource(conditions)).body if getattr(n, "name", "") == "Reason"]
    names = [n.targets[0].id for n in body if isinstance(n, ast.Assign)]
    said = [
        previous.targets[0].id
        for previous, n in itertools.pairwise(body)
        if isinstance(n, ast.Expr) and isinstance(previous, ast.Assign)
    ]
    assert said == names
    assert {conditions.Reason[name] for name in names} == set(conditions.Reason)
