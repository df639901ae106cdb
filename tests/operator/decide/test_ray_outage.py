"""A Ray that does not answer or rejects the token, and the conditions during that time."""

from octavo_operator.model.observed import Reach


def test_a_restarting_head_changes_no_condition_that_still_holds(serving):
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


def test_an_edited_token_stops_nothing_and_names_the_remedy(serving):
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
