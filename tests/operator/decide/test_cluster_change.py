"""Change of a field that needs another Ray cluster, with both strategies."""

from octavo_operator.model.actions import Delete, RemoveApplication
from octavo_operator.model.observed import Reach
from octavo_testing.operator.plan_world import kinds


def test_in_place_announces_drains_deletes_and_then_creates(serving):
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


def test_new_cluster_switches_when_complete_then_drains_the_old(serving):
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


def test_a_new_cluster_starts_with_as_many_engines_as_the_old(serving):
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


def test_a_new_cluster_without_room_is_dropped_by_reverting_the_edit(serving):
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


def test_an_edit_during_a_roll_drops_the_pending_cluster(serving):
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
