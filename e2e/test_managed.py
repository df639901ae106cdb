"""Managed mode: real KubeRay makes real pods of what the operator asks for; what each kind of edit changes.

Pods run on a fake node, so a stub plays the Ray in them.
"""

import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from octavo_testing.kube.cluster import Cluster
from octavo_testing.kube.documents import deployment
from octavo_testing.kube.kubectl import Kubectl, Refused
from octavo_testing.kube.operator import Installation, Operator
from octavo_testing.kube.serve_stub import Stub, running_stub
from octavo_testing.kube.serving import Serving
from octavo_testing.waiting import eventually

pytestmark = pytest.mark.full

OWNED = "serving.octavo.dev/deployment"
CHILDREN = ("rayclusters.ray.io", "services", "poddisruptionbudgets", "secrets", "networkpolicies")


@pytest.fixture(scope="module")
def stub(crd: Cluster) -> Iterator[Stub]:
    with running_stub(crd.folder) as stub:
        yield stub


@pytest.fixture(scope="module")
def operator(installation: Installation, stub: Stub) -> Iterator[Operator]:
    with installation.operator(name="operator-managed", dashboard=stub.dashboard) as running:
        yield running


@pytest.fixture
def restricted(namespace: Kubectl) -> Kubectl:
    namespace.run("label", "namespace", namespace.namespace, "pod-security.kubernetes.io/enforce=restricted")
    return namespace


@pytest.fixture
def books(restricted: Kubectl, operator: Operator) -> Serving:
    """Two engines that serve."""
    restricted.create(deployment(replicas=2))
    serving = Serving(restricted, "books")
    serving.wait_ready()
    return serving


def children(kubectl: Kubectl) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the operator's objects by kind and name; KubeRay gives its own objects other labels."""
    found = kubectl.list(",".join(CHILDREN), f"{OWNED}=books")
    return {(item["kind"], item["metadata"]["name"]): item for item in found}


def specs(kubectl: Kubectl) -> dict[tuple[str, str], Any]:
    """Return uid and specification of the children, without statuses."""
    return {
        key: (item["metadata"]["uid"], item["metadata"].get("labels"), item.get("spec"), item.get("data"))
        for key, item in children(kubectl).items()
    }


def clusters(kubectl: Kubectl) -> dict[str, dict[str, Any]]:
    return {item["metadata"]["name"]: item for item in kubectl.list("rayclusters.ray.io", f"{OWNED}=books")}


def groups(cluster: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {g["groupName"]: (g["minReplicas"], g["maxReplicas"]) for g in cluster["spec"]["workerGroupSpecs"]}


def test_a_foreign_object_of_the_name_is_spared_and_blocks_ours(restricted: Kubectl, operator: Operator) -> None:
    restricted.run("create", "service", "clusterip", "books", "--tcp=80:80")
    theirs = restricted.get("service", "books")
    restricted.create(deployment())
    serving = Serving(restricted, "books")
    serving.wait("SpecValid", "False", "ObjectNameConflict")
    time.sleep(2)
    assert restricted.get("service", "books") == theirs
    assert children(restricted) == {}
    restricted.delete("service", "books")
    serving.wait_ready()
    assert restricted.get("service", "books")["metadata"]["uid"] != theirs["metadata"]["uid"]


def test_all_objects_appear_and_pod_security_restricted_admits_the_pods(books: Serving) -> None:
    kubectl = books.kubectl
    found = children(kubectl)
    ((name, cluster),) = clusters(kubectl).items()
    assert set(found) == {
        ("RayCluster", name),
        ("Service", "books"),
        ("PodDisruptionBudget", "books-engine"),
        ("Secret", "books-ray-token"),
    }
    for item in found.values():
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("ServingDeployment", "books", True)
    assert cluster["spec"]["enableInTreeAutoscaling"] is True
    assert found["PodDisruptionBudget", "books-engine"]["spec"]["minAvailable"] == 1
    head = kubectl.list("pods", f"ray.io/cluster={name},ray.io/node-type=head")
    assert [pod["status"]["phase"] for pod in head] == ["Running"]
    assert not [event for event in kubectl.list("events") if "violates PodSecurity" in event.get("message", "")]


def test_workers_of_the_autoscaler_are_admitted_and_become_endpoints(books: Serving) -> None:
    """Ray's own autoscaler runs in the head's pod, which is a fake: this plays its part."""
    kubectl = books.kubectl
    ((name, cluster),) = clusters(kubectl).items()
    for number, group in enumerate(cluster["spec"]["workerGroupSpecs"]):
        change = [{"op": "add", "path": f"/spec/workerGroupSpecs/{number}/replicas", "value": group["minReplicas"]}]
        kubectl.run("patch", "rayclusters.ray.io", name, "--type=json", f"--patch={json.dumps(change)}")
    wanted = sum(least for least, _ in groups(cluster).values())

    def workers() -> list[dict[str, Any]]:
        pods = kubectl.list("pods", f"ray.io/cluster={name},ray.io/node-type=worker")
        return [pod for pod in pods if pod["status"].get("phase") == "Running"]

    eventually(f"{wanted} workers run", lambda: len(workers()) == wanted)
    gateways = {p["status"]["podIP"] for p in workers() if p["metadata"]["labels"]["ray.io/group"] == "gateway"}

    def endpoints() -> set[str]:
        slices = kubectl.list("endpointslices", "kubernetes.io/service-name=books")
        return {address for s in slices for e in s["endpoints"] or () for address in e["addresses"]}

    eventually("gateways are the Service's endpoints", lambda: endpoints() == gateways)
    assert {port["name"] for s in kubectl.list("endpointslices") for port in s["ports"] or ()} >= {"http", "grpc"}
    budget = eventually("the budget counts engines", lambda: counted(kubectl))
    assert (budget["expectedPods"], budget["desiredHealthy"]) == (2, 1)


def counted(kubectl: Kubectl) -> dict[str, Any] | None:
    status = kubectl.get("poddisruptionbudget", "books-engine")["status"]
    return status if status.get("currentHealthy") == 2 else None


@pytest.mark.parametrize(
    "edit",
    [
        {"engine": {"maxNumQueuedReqs": 3}},
        {"model": {"servedName": "tales"}},
        {"rollout": {"drainSeconds": 5}},
        {"engine": {"maxNumSeqs": 7}},
        {"model": {"uri": "hf://org/other"}},
    ],
    ids=["live", "name", "drain", "rolling", "model"],
)
def test_live_and_rolling_edits_leave_every_object_as_it_is(edit: dict[str, Any], books: Serving) -> None:
    before = specs(books.kubectl)
    books.edit(edit)
    books.wait_ready()
    assert specs(books.kubectl) == before


def test_scale_moves_bounds_of_the_same_cluster_and_the_budget(books: Serving) -> None:
    ((name, before),) = clusters(books.kubectl).items()
    books.kubectl.run("scale", "sdep/books", "--replicas=4")
    books.wait_ready()
    ((same, after),) = clusters(books.kubectl).items()
    assert (same, after["metadata"]["uid"]) == (name, before["metadata"]["uid"])
    assert groups(after)["engine"][0] == 4
    assert groups(after)["gateway"] == groups(before)["gateway"]
    assert books.kubectl.get("poddisruptionbudget", "books-engine")["spec"]["minAvailable"] == 3
    books.kubectl.run("scale", "sdep/books", "--replicas=1")
    books.wait_ready()
    eventually("no budget for one", lambda: books.kubectl.find("poddisruptionbudget", "books-engine") is None)
    eventually("the minimum follows", lambda: groups(clusters(books.kubectl)[name])["engine"][0] == 1)


def test_counts_that_the_autoscaler_set_are_not_touched(books: Serving) -> None:
    ((name, _),) = clusters(books.kubectl).items()
    change = [{"op": "add", "path": "/spec/workerGroupSpecs/1/replicas", "value": 2}]
    books.kubectl.run("patch", "rayclusters.ray.io", name, "--type=json", f"--patch={json.dumps(change)}")
    books.kubectl.run("scale", "sdep/books", "--replicas=3")
    books.wait_ready()
    assert clusters(books.kubectl)[name]["spec"]["workerGroupSpecs"][1]["replicas"] == 2


def test_in_place_a_new_cluster_starts_after_an_event_and_the_old_ones_end(books: Serving) -> None:
    ((old, _),) = clusters(books.kubectl).items()
    books.edit({"resources": {"limits": {"cpu": 3}}})
    seen: list[set[str]] = []

    def replaced() -> bool:
        seen.append(set(clusters(books.kubectl)))
        return bool(seen[-1]) and old not in seen[-1]

    eventually("another cluster", replaced)
    books.wait_ready()
    ((new, _),) = clusters(books.kubectl).items()
    assert new != old
    assert all(len(names) < 2 for names in seen), "both at the same time"
    assert books.said("InterruptingService")


def test_beside_a_new_cluster_the_old_one_serves_until_it_is_ready(books: Serving) -> None:
    ((old, _),) = clusters(books.kubectl).items()
    books.edit({"rollout": {"strategy": "NewCluster", "drainSeconds": 1}})
    books.wait_ready()
    assert set(clusters(books.kubectl)) == {old}
    books.edit({"resources": {"limits": {"cpu": 3}}})
    eventually("two clusters", lambda: len(clusters(books.kubectl)) == 2)
    (new,) = set(clusters(books.kubectl)) - {old}
    books.wait_ready()
    assert books.kubectl.get("service", "books")["spec"]["selector"]["ray.io/cluster"] == new
    eventually("the old one is gone", lambda: set(clusters(books.kubectl)) == {new})
    assert books.said("TrafficSwitched")


def test_suspend_frees_all_pods_and_resume_makes_them_again(books: Serving, stub: Stub) -> None:
    ((name, _),) = clusters(books.kubectl).items()
    books.edit({"suspend": True})
    books.wait("Ready", "False", "Suspended")
    eventually("no pods", lambda: not books.kubectl.list("pods"))
    assert not clusters(books.kubectl)
    stub.forget(books.kubectl.namespace, name)
    books.edit({"suspend": False})
    books.wait_ready()
    assert clusters(books.kubectl)


def test_what_somebody_else_deletes_or_changes_comes_back(books: Serving) -> None:
    kubectl = books.kubectl
    wanted = specs(kubectl)
    kubectl.run("delete", "service", "books")
    eventually("the Service is back", lambda: kubectl.find("service", "books") is not None)
    kubectl.patch("poddisruptionbudget", "books-engine", {"spec": {"minAvailable": 0}})
    eventually(
        "the budget is reverted",
        lambda: kubectl.get("poddisruptionbudget", "books-engine")["spec"]["minAvailable"] == 1,
    )
    assert set(specs(kubectl)) == set(wanted)


def test_a_restart_and_an_upgrade_of_the_operator_write_nothing(
    books: Serving, operator: Operator, installation: Installation
) -> None:
    """A newer operator comes with another default image: what serves keeps its own."""
    kubectl = books.kubectl
    time.sleep(3)
    before = {key: item["metadata"]["resourceVersion"] for key, item in children(kubectl).items()}
    resource = books.document["metadata"]["resourceVersion"]
    calls = len(installation.recorded())
    operator.restart("--image=ghcr.io/octavo-dev/octavo-server:9.9.9")
    time.sleep(6)
    made = [call for call in installation.recorded()[calls:] if call.namespace in ("", kubectl.namespace)]
    operator.restart()
    assert len(made) > 5, "the operator did not look"
    assert [call for call in made if call.right.verb not in ("get", "list", "watch")] == []
    assert {key: item["metadata"]["resourceVersion"] for key, item in children(kubectl).items()} == before
    assert books.document["metadata"]["resourceVersion"] == resource


def test_helm_upgrade_changes_no_child(books: Serving, installation: Installation) -> None:
    before = specs(books.kubectl)
    changes = ("crds.install=false", "operator.workers=8", "serverImage.tag=9.9.9")
    installation.helm.upgrade("octavo", *installation.flags, *(f"--set={change}" for change in changes))
    time.sleep(2)
    assert specs(books.kubectl) == before


def test_deletion_takes_everything_without_a_finalizer(books: Serving) -> None:
    assert not books.document["metadata"].get("finalizers")
    books.kubectl.run("delete", "sdep", "books", "--timeout=30s")
    eventually("nothing is left", lambda: nothing_left(books.kubectl), timeout_s=30)


def test_deletion_ends_while_the_operator_is_down(books: Serving, operator: Operator) -> None:
    operator.stop(signal.SIGKILL)
    try:
        books.kubectl.run("delete", "sdep", "books", "--timeout=30s")
        eventually("nothing is left", lambda: nothing_left(books.kubectl), timeout_s=30)
    finally:
        operator.start()


def test_a_namespace_that_goes_takes_all_with_it(books: Serving) -> None:
    books.kubectl.run("delete", "namespace", books.kubectl.namespace, "--timeout=60s", timeout_s=70)
    with pytest.raises(Refused, match="NotFound"):
        books.kubectl.run("get", "namespace", books.kubectl.namespace)


def nothing_left(kubectl: Kubectl) -> bool:
    kinds = f"sdep,{','.join(CHILDREN)},pods,endpointslices,serviceaccounts,roles,rolebindings,persistentvolumeclaims"
    left = set(kubectl.run("get", kinds, "-o", "name").split())
    return left == {"serviceaccount/default"}


def test_a_missing_secret_is_named_and_its_coming_heals(restricted: Kubectl, operator: Operator) -> None:
    restricted.create(deployment(endpoint={"apiKeySecretRef": {"name": "keys"}}))
    serving = Serving(restricted, "books")
    serving.wait("SpecValid", "False", "SecretNotFound")
    assert "keys" in serving.condition("SpecValid")["message"]
    restricted.run("create", "secret", "generic", "keys", "--from-literal=api-keys=k-123456789")
    serving.wait_ready()
    assert "k-123456789" not in json.dumps([serving.document, *children(restricted).values()])
    assert "k-123456789" not in operator.log()


def test_a_head_that_fits_nowhere_is_named(restricted: Kubectl, operator: Operator) -> None:
    head = {"resources": {"limits": {"cpu": 1000}}}
    restricted.create(deployment(rayCluster={"managed": {"head": head}}))
    serving = Serving(restricted, "books")
    serving.wait("RayClusterReady", "False")
    assert serving.condition("RayClusterReady")["reason"] in ("HeadNotReady", "RayClusterPending")
    assert serving.condition("Ready")["status"] == "False"
