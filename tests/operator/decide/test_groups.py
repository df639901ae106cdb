"""Bounds of the worker groups: Serve scales down first, the minimum follows, and no pod is ever taken by number."""

from octavo_operator.model.actions import PatchCluster


def bounds(w, name="engine"):
    group = w.group(name)
    return group["minReplicas"], group["maxReplicas"]


def kuberay_pods(w, name="engine"):
    group = w.group(name)
    return min(max(group["replicas"], group["minReplicas"]), group["maxReplicas"])


def test_bounds_are_the_target_and_room_for_a_roll(serving):
    w = serving({"replicas": 3, "router": {"replicas": 2}})
    assert bounds(w) == (3, 4), "a quarter more, rounded up"
    assert bounds(w, "gateway") == (2, 4), "gateways roll with a new one beside each old one"
    w.edit(rollout={"maxSurgePercent": 0})
    w.settle()
    assert bounds(w) == (3, 3)


def test_with_autoscaling_the_maximum_covers_the_most_replicas(serving):
    assert bounds(serving({"autoscaling": {"minReplicas": 1, "maxReplicas": 7}})) == (1, 9)


def test_scaling_up_raises_the_bounds_at_once(serving):
    w = serving()
    w.edit(replicas=4)
    w.step()
    assert bounds(w) == (4, 5)


def test_scaling_down_keeps_the_pods_until_serve_let_go_of_them(serving):
    w = serving({"replicas": 3})
    w.edit(replicas=1)
    w.step()
    assert bounds(w) == (3, 4)
    w.app.status = "RUNNING"
    w.app.replicas["Engine"] = ["RUNNING", "STOPPING", "STOPPING"]
    w.step()
    assert bounds(w) == (3, 4)
    w.app.replicas["Engine"] = ["RUNNING", "STOPPING"]
    w.step()
    assert bounds(w) == (2, 3)
    w.app.replicas["Engine"] = ["RUNNING"]
    w.step()
    assert bounds(w) == (1, 3), "the autoscaler takes the idle pods by name, then the maximum follows"
    w.group("engine")["replicas"] = 1
    w.step()
    assert bounds(w) == (1, 2)


def test_lowering_a_minimum_never_lowers_the_count_that_kuberay_runs(serving):
    w = serving({"replicas": 3})
    w.group("engine")["replicas"] = 0  # never written by the autoscaler: the minimum alone made the pods
    assert kuberay_pods(w) == 3
    w.edit(replicas=1)
    w.step()
    w.app.status = "RUNNING"
    w.app.replicas["Engine"] = ["RUNNING"]
    (patch,) = [action for action in w.step().actions if isinstance(action, PatchCluster)]
    assert bounds(w)[0] == 1
    assert kuberay_pods(w) == 3
    assert {"op": "test", "path": "/spec/workerGroupSpecs/1/replicas", "value": 0} in patch.operations


def test_a_count_that_the_autoscaler_wrote_is_not_touched(serving):
    w = serving({"replicas": 3})
    w.edit(replicas=1)
    w.step()
    w.run_apps()
    w.group("engine")["replicas"] = 3
    w.forget()
    w.step()
    assert not any("replicas" in op["path"] for action in w.of(PatchCluster) for op in action.operations)


def test_while_ray_is_silent_no_bound_falls(serving):
    from octavo_operator.model.observed import Reach

    w = serving({"replicas": 3})
    w.edit(replicas=1)
    w.step()
    w.ray.reach = Reach.UNREACHABLE
    for _ in range(3):
        w.step()
    assert bounds(w) == (3, 4)


def test_a_patch_is_guarded_by_uid_and_group_name(serving):
    w = serving()
    w.edit(replicas=2)
    w.step()
    (patch,) = w.of(PatchCluster)
    tests = [op for op in patch.operations if op["op"] == "test"]
    assert [op["path"] for op in tests] == ["/metadata/uid", "/spec/workerGroupSpecs/1/groupName"]


def test_bounds_that_somebody_edits_are_set_back(serving):
    w = serving({"replicas": 2})
    w.group("engine").update(minReplicas=0, maxReplicas=9)
    w.step()
    assert bounds(w) == (2, 3)


def test_draining_engines_take_no_room_from_their_successors(serving):
    w = serving({"replicas": 2})
    w.edit(engine={"maxNumSeqs": 4})
    w.step()
    w.app.statuses["Engine"] = "UPDATING"
    w.app.replicas["Engine"] = ["STOPPING", "RUNNING", "RUNNING"]
    w.app.targets["Engine"] = 2
    w.step()
    assert bounds(w) == (2, 4)
    w.app.targets.clear()
    w.settle()
    w.group("engine")["replicas"] = 2
    w.step()
    assert bounds(w) == (2, 3)
