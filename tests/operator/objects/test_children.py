"""Service, PodDisruptionBudget, NetworkPolicy, token Secret; and when one is applied again."""

import copy

import pytest

from octavo_operator.model.actions import Apply, CreateSecret, Delete
from octavo_operator.objects.matching import covers


def test_the_service_selects_gateways_of_the_active_cluster(serving):
    w = serving({"endpoint": {"http": {"port": 80}, "service": {"type": "LoadBalancer", "annotations": {"a": "b"}}}})
    service = w.children["Service", "qwen"]
    assert service["spec"]["type"] == "LoadBalancer"
    assert service["spec"]["selector"] == {
        "ray.io/cluster": w.cluster["metadata"]["name"],
        "app.kubernetes.io/component": "gateway",
    }
    assert [(p["name"], p["port"], p["targetPort"], p["appProtocol"]) for p in service["spec"]["ports"]] == [
        ("http", 80, "http", "http"),
        ("grpc", 9000, "grpc", "kubernetes.io/h2c"),
    ]
    assert service["metadata"]["annotations"]["a"] == "b"
    assert service["metadata"]["ownerReferences"][0]["uid"] == "u0"


def test_tls_shows_in_ports_and_urls(serving):
    w = serving({"endpoint": {"tlsSecretRef": {"name": "cert"}}})
    ports = w.children["Service", "qwen"]["spec"]["ports"]
    assert [port["appProtocol"] for port in ports] == ["https", "https"]
    assert w.status["urls"]["http"] == "https://qwen.shop.svc:8000/v1"


def test_an_annotation_taken_from_the_spec_is_taken_from_the_service(serving):
    w = serving({"endpoint": {"service": {"annotations": {"a": "b"}}}})
    w.edit(endpoint__service={})
    (apply,) = [a for a in w.step().actions if isinstance(a, Apply)]
    assert "a" not in apply.document["metadata"]["annotations"]
    assert "DriftCorrected" not in w.reasons


def test_what_the_cluster_adds_to_a_child_is_no_drift(serving):
    w = serving()
    service = w.children["Service", "qwen"]
    service["spec"].update(clusterIP="10.0.0.1", ipFamilies=["IPv4"], sessionAffinity="None")
    service["spec"]["ports"][0]["nodePort"] = 30001
    service["metadata"]["annotations"]["other.example/owner"] = "x"
    service["status"] = {"loadBalancer": {}}
    assert w.step().actions == ()


@pytest.mark.parametrize(("replicas", "least"), [(0, None), (1, None), (2, 1), (5, 4)])
def test_the_budget_lets_one_engine_go_and_does_not_exist_for_one(serving, replicas, least):
    w = serving({"replicas": replicas})
    budget = w.children.get(("PodDisruptionBudget", "qwen-engine"))
    assert (None if budget is None else budget["spec"]["minAvailable"]) == least
    if budget is not None:
        assert budget["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] == "engine"


def test_a_budget_that_is_no_longer_wanted_is_deleted(serving):
    w = serving({"replicas": 2})
    w.edit(replicas=1)
    deletes = [a for a in w.step().actions if isinstance(a, Delete)]
    assert [(d.kind, d.name) for d in deletes] == [("PodDisruptionBudget", "qwen-engine")]


def test_while_ray_is_silent_an_autoscaled_budget_keeps_its_number(serving):
    from octavo_operator.model.observed import Reach

    w = serving({"autoscaling": {"minReplicas": 1, "maxReplicas": 9}})
    w.run_apps(engines=5)
    w.step()
    assert w.children["PodDisruptionBudget", "qwen-engine"]["spec"]["minAvailable"] == 4
    w.ray.reach = Reach.UNREACHABLE
    assert w.step().actions == ()


def test_the_network_policy_comes_and_goes_with_the_spec(serving):
    w = serving()
    assert ("NetworkPolicy", "qwen-ray") not in w.children
    w.edit(rayCluster__managed={"networkPolicy": True})
    w.step()
    policy = w.children["NetworkPolicy", "qwen-ray"]["spec"]
    assert policy["podSelector"]["matchLabels"] == {"serving.octavo.dev/deployment": "qwen"}
    own, operator, listeners = policy["ingress"]
    assert own == {"from": [{"podSelector": {"matchLabels": {"serving.octavo.dev/deployment": "qwen"}}}]}
    assert operator["ports"] == [{"port": 8265, "protocol": "TCP"}]
    assert operator["from"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "octavo"}
    assert operator["from"][0]["podSelector"]["matchLabels"] == {"app": "op"}
    assert [port["port"] for port in listeners["ports"]] == [8000, 9000]
    assert "from" not in listeners
    w.edit(rayCluster__managed={"networkPolicy": False})
    w.step()
    assert ("NetworkPolicy", "qwen-ray") not in w.children


def test_the_token_secret_has_no_value_in_a_plan(world):
    (create,) = (action for action in world().step().actions if isinstance(action, CreateSecret))
    assert create.keys == ("auth_token",)
    assert not create.document.keys() & {"data", "stringData"}


@pytest.mark.parametrize(
    ("wanted", "found", "covered"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1}, {}, False),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({"a": [{"x": 1}]}, {"a": [{"x": 1, "y": 2}]}, True),
        ({"a": {}}, {}, True),
        ({"a": []}, {"a": [1]}, False),
        ({"a": None}, {}, True),
        ({"a": False}, {}, True),
        ({"a": False}, {"a": True}, False),
        ({"selector": {"x": 1}}, {"selector": {"x": 1, "y": 2}}, False),
        ({"selector": {"matchLabels": {"x": 1}}}, {"selector": {"matchLabels": {"x": 1}}}, True),
        ({"a": "b"}, {"a": ["b"]}, False),
        ({"a": ["b"]}, {"a": "b"}, False),
        ({"a": 1}, None, False),
    ],
)
def test_covers(wanted, found, covered):
    assert covers(wanted, found) is covered
    assert covers(copy.deepcopy(wanted), wanted)
