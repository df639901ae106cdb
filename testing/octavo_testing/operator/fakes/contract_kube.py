"""What the operator relies on in a Kubernetes API server: one suite for the fake and for a real one.

Subclass it where the fixture ``target`` is: an ``Api``, a namespace of its own, and how to make a Namespace end.
Needs ServingDeployments' and RayClusters' definitions installed, and no controller that changes a RayCluster's spec.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from octavo_api.resource.deployment import API_VERSION, FINALIZER, KIND
from octavo_operator.kube.api import Api
from octavo_operator.kube.client import Kube
from octavo_operator.kube.errors import Conflict, KindMissing, NamespaceTerminating, NotFound, Rejected
from octavo_operator.kube.events import EventLog
from octavo_operator.model import kinds, names
from octavo_operator.model.actions import Delete, Event, PatchCluster, PatchService
from octavo_operator.model.kinds import Kind
from octavo_operator.model.observed import Key, Resource
from octavo_operator.objects.children import port_corrections


@dataclass(frozen=True)
class Target:
    api: Api
    namespace: str
    terminate: Callable[[str], Awaitable[None]]
    """Deletes a namespace in which a finalizer holds something, so that it stays in termination."""


def deployment(namespace: str, name: str, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"namespace": namespace, "name": name, **metadata},
        "spec": {"model": {"uri": "embedded://smollm2"}},
    }


def service(name: str, owner: Resource | None = None, port: int = 8000, **labels: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "labels": {names.DEPLOYMENT_LABEL: name, **labels}}
    if owner is not None:
        reference = {"apiVersion": API_VERSION, "kind": KIND, "name": owner.key.name, "uid": owner.uid}
        metadata["ownerReferences"] = [{**reference, "controller": True, "blockOwnerDeletion": True}]
    spec = {"ports": [{"name": "http", "port": port}], "selector": {"app": name}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def ray_cluster(name: str, replicas: int = 0) -> dict[str, Any]:
    pod = {"spec": {"containers": [{"name": "ray", "image": "octavo:test"}]}}
    worker = {"groupName": "engine", "replicas": replicas, "minReplicas": 0, "maxReplicas": 3}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name, "labels": {names.DEPLOYMENT_LABEL: name}},
        "spec": {
            "headGroupSpec": {"rayStartParams": {}, "template": pod},
            "workerGroupSpecs": [{**worker, "rayStartParams": {}, "template": pod}],
        },
    }


async def eventually(what: str, condition: Callable[[], Awaitable[Any]], seconds: float = 30) -> Any:
    for _ in range(int(seconds / 0.05)):
        if value := await condition():
            return value
        await asyncio.sleep(0.05)
    raise AssertionError(f"never: {what}")


class KubeContract:
    @pytest.fixture
    def api(self, target: Target) -> Api:
        return target.api

    @pytest.fixture
    def kube(self, target: Target) -> Kube:
        return Kube(target.api, [target.namespace])

    @pytest.fixture
    def name(self) -> str:
        return f"d{uuid.uuid4().hex[:8]}"

    async def make(self, target: Target, name: str, **metadata: Any) -> Resource:
        path = kinds.SERVING_DEPLOYMENT.path(target.namespace)
        await target.api.call("POST", path, body=deployment(target.namespace, name, **metadata))
        found = await Kube(target.api).get_resource(Key(target.namespace, name))
        assert found is not None
        return found

    async def test_a_missing_object_is_none_and_a_missing_kind_is_said_to_be_missing(self, target, kube, api, name):
        assert await kube.get_resource(Key(target.namespace, name)) is None
        assert await kube.get_secret(target.namespace, name) is None
        assert await kube.claim_exists(target.namespace, name) is False
        unknown = Kind("nobody.example.com", "v1", "things", "Thing")
        assert await kube.kind_installed(unknown) is False
        assert await kube.kind_installed(kinds.SERVING_DEPLOYMENT) is True
        assert await kube.kind_installed(kinds.SERVICE) is True
        for path in (unknown.path(target.namespace), unknown.path(target.namespace, name)):
            with pytest.raises(KindMissing):
                await api.call("GET", path)

    async def test_a_new_resource_has_a_uid_a_generation_and_a_time(self, target, name):
        made = await self.make(target, name)
        assert made.generation == 1
        assert made.uid
        assert made.created_at > 1_700_000_000
        assert made.deleted_at is None
        assert made.finalizers == ()
        assert made.status == {}
        assert "managedFields" not in made.document["metadata"]

    async def test_a_status_is_replaced_whole_and_moves_no_generation(self, target, kube, name):
        made = await self.make(target, name)
        first = {"observedGeneration": 1, "urls": {"http": "http://a", "grpc": "b:1"}, "replicas": 2}
        one = await kube.patch_status(made, first)
        assert one.status == first
        second = {"observedGeneration": 1, "urls": {"http": "http://a"}}
        two = await kube.patch_status(one, second)
        assert two.status == second
        assert two.generation == 1
        assert two.document["spec"] == made.document["spec"]

    async def test_a_status_on_an_old_version_is_a_conflict(self, target, kube, name):
        made = await self.make(target, name)
        await kube.patch_status(made, {"replicas": 1})
        with pytest.raises(Conflict):
            await kube.patch_status(made, {"replicas": 2})

    async def test_the_same_status_again_makes_no_new_version(self, target, kube, name):
        made = await self.make(target, name)
        one = await kube.patch_status(made, {"replicas": 1})
        two = await kube.patch_status(one, {"replicas": 1})
        assert two.resource_version == one.resource_version

    async def test_a_finalizer_keeps_a_deleted_resource_until_it_is_taken_off(self, target, kube, api, name):
        made = await self.make(target, name)
        held = await kube.set_finalizer(made, FINALIZER, present=True)
        assert held is not None
        assert held.finalizers == (FINALIZER,)
        assert await kube.set_finalizer(held, FINALIZER, present=True) == held
        await api.call("DELETE", kinds.SERVING_DEPLOYMENT.path(target.namespace, name))
        deleted = await kube.get_resource(made.key)
        assert deleted is not None
        assert deleted.deleted_at is not None
        with pytest.raises(Conflict):
            await kube.set_finalizer(held, FINALIZER, present=False)
        assert await kube.set_finalizer(deleted, FINALIZER, present=False) is None
        assert await kube.get_resource(made.key) is None

    async def test_a_finalizer_of_another_stays(self, target, kube, api, name):
        made = await self.make(target, name, finalizers=["example.com/theirs"])
        held = await kube.set_finalizer(made, FINALIZER, present=True)
        assert held is not None
        released = await kube.set_finalizer(held, FINALIZER, present=False)
        assert released is not None
        assert released.finalizers == ("example.com/theirs",)
        await kube.set_finalizer(released, "example.com/theirs", present=False)

    async def test_an_applied_object_is_made_changed_and_left_alone(self, target, kube, api, name):
        path = kinds.SERVICE.path(target.namespace, name)
        intended = service(name)
        intended["metadata"]["annotations"] = {"colour": "red"}
        await kube.apply(target.namespace, intended)
        made = await api.call("GET", path)
        assert made["metadata"]["annotations"] == {"colour": "red"}
        await kube.apply(target.namespace, intended, made["metadata"]["uid"])
        again = await api.call("GET", path)
        assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
        del intended["metadata"]["annotations"]
        intended["spec"]["selector"] = {"app": "other"}
        await kube.apply(target.namespace, intended, made["metadata"]["uid"])
        changed = await api.call("GET", path)
        assert changed["spec"]["selector"] == {"app": "other"}
        assert "annotations" not in changed["metadata"], "an annotation that is left out of an apply goes"
        assert changed["metadata"]["uid"] == made["metadata"]["uid"]

    async def test_an_apply_takes_its_fields_back_and_leaves_those_of_others(self, target, kube, api, name):
        path = kinds.SERVICE.path(target.namespace, name)
        await kube.apply(target.namespace, service(name, colour="red"))
        theirs = {"metadata": {"labels": {"colour": "blue", "theirs": "yes"}}}
        changed = await api.call("PATCH", path, body=theirs, content_type="application/merge-patch+json")
        await kube.apply(target.namespace, service(name, colour="red"), changed["metadata"]["uid"])
        labels = (await api.call("GET", path))["metadata"]["labels"]
        assert (labels["colour"], labels["theirs"]) == ("red", "yes")

    @pytest.mark.parametrize(
        ("kind", "theirs", "ours"),
        [
            (
                kinds.SERVICE,
                {"ports": [{"port": 80}], "selector": {"app": "theirs"}},
                {"ports": [{"name": "http", "port": 8000}], "selector": {"app": "ours"}},
            ),
            (
                kinds.DISRUPTION_BUDGET,
                {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "theirs"}}},
                {"minAvailable": 1, "selector": {"matchLabels": {"ours": "yes"}}},
            ),
            (
                kinds.NETWORK_POLICY,
                {"podSelector": {}, "policyTypes": ["Ingress"]},  # in nothing contrary to ours
                {"podSelector": {"matchLabels": {"ours": "yes"}}, "policyTypes": ["Ingress"]},
            ),
        ],
        ids=lambda value: value.kind if isinstance(value, Kind) else "",
    )
    async def test_what_somebody_made_meanwhile_is_not_taken_over(self, target, kube, api, name, kind, theirs, ours):
        """Between a look and the creation: nothing is forced."""
        document = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}}
        made = await api.call("POST", kind.path(target.namespace), body={**document, "spec": theirs})
        labelled = {**document, "metadata": {"name": name, "labels": {names.DEPLOYMENT_LABEL: name}}}
        with pytest.raises(Conflict):
            await kube.apply(target.namespace, {**labelled, "spec": ours})
        found = await kube.get_child(kind, target.namespace, name)
        assert found is not None
        assert found["spec"] == made["spec"]
        assert "labels" not in found["metadata"]
        assert "managedFields" not in found["metadata"]

    async def test_what_was_replaced_meanwhile_is_not_taken_over(self, target, kube, api, name):
        """Between a look and a change: the change is for the object of that uid."""
        path = kinds.SERVICE.path(target.namespace, name)
        await kube.apply(target.namespace, service(name))
        seen = (await api.call("GET", path))["metadata"]["uid"]
        await api.call("DELETE", path)
        with pytest.raises(Conflict):
            await kube.apply(target.namespace, service(name), seen)
        assert await kube.get_child(kinds.SERVICE, target.namespace, name) is None
        await kube.apply(target.namespace, service(name))
        with pytest.raises(Conflict):
            await kube.apply(target.namespace, service(name, port=8001), seen)
        assert (await api.call("GET", path))["spec"]["ports"][0]["port"] == 8000

    async def test_a_child_is_found_by_name_and_a_secret_without_its_values(self, target, kube, name):
        for kind in (kinds.SERVICE, kinds.SECRET, Kind("nobody.example.com", "v1", "things", "Thing")):
            assert await kube.get_child(kind, target.namespace, name) is None
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
        await kube.create_secret(target.namespace, secret, ("auth_token",))
        found = await kube.get_child(kinds.SECRET, target.namespace, name)
        assert found is not None
        assert found["keys"] == ["auth_token"]
        assert not found.keys() & {"data", "stringData"}

    async def test_ports_are_replaced_where_the_service_is_still_the_same(self, target, kube, api, name):
        """What server-side apply cannot: take away one that somebody else wrote, or whose name ours needs."""
        path = kinds.SERVICE.path(target.namespace, name)
        intended = service(name)
        await kube.apply(target.namespace, intended)
        spoiled = [{"name": "http", "port": 81}, {"name": "debug", "port": 5000}]
        patch = {"op": "replace", "path": "/spec/ports", "value": spoiled}
        live = await api.call("PATCH", path, body=[patch], content_type="application/json-patch+json")
        with pytest.raises(Rejected):
            await kube.apply(target.namespace, intended, live["metadata"]["uid"])
        operations = port_corrections(intended, live)
        await kube.patch_service(target.namespace, PatchService(name, operations))
        await kube.apply(target.namespace, intended, live["metadata"]["uid"])
        found = await api.call("GET", path)
        assert [(port["name"], port["port"]) for port in found["spec"]["ports"]] == [("http", 8000)]
        assert port_corrections(intended, found) == ()
        wrong = ({**operations[0], "value": str(uuid.uuid4())}, *operations[1:])
        with pytest.raises(Conflict):
            await kube.patch_service(target.namespace, PatchService(name, wrong))
        with pytest.raises(NotFound):
            await kube.patch_service(target.namespace, PatchService(f"{name}-gone", operations))

    async def test_children_are_found_by_label_and_secrets_by_name_without_values(self, target, kube, name):
        key = Key(target.namespace, name)
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": names.token_secret(key), "labels": {names.DEPLOYMENT_LABEL: name}},
        }
        await kube.create_secret(target.namespace, secret, ("auth_token",))
        await kube.apply(target.namespace, service(name))
        await kube.apply(target.namespace, service(f"{name}-other"))
        await kube.apply(target.namespace, ray_cluster(name))
        children = await kube.list_children(key)
        assert children.kuberay_installed
        assert [cluster["metadata"]["name"] for cluster in children.clusters] == [name]
        assert set(children.objects) == {("Service", name), ("Secret", names.token_secret(key))}
        assert children.objects["Service", name]["kind"] == "Service"
        assert children.objects["Secret", names.token_secret(key)]["keys"] == ["auth_token"]
        value = await kube.get_secret_value(target.namespace, names.token_secret(key), "auth_token")
        assert value is not None
        assert len(value) > 20
        assert value.decode() not in str(children)
        with pytest.raises(Conflict):
            await kube.create_secret(target.namespace, secret, ("auth_token",))
        assert await kube.get_secret_value(target.namespace, names.token_secret(key), "auth_token") == value
        assert await kube.get_secret_value(target.namespace, names.token_secret(key), "other") is None

    async def test_a_cluster_is_patched_only_where_its_tests_hold(self, target, kube, api, name):
        await kube.apply(target.namespace, ray_cluster(name, replicas=2))
        test = {"op": "test", "path": "/spec/workerGroupSpecs/0/groupName", "value": "engine"}
        grow = {"op": "replace", "path": "/spec/workerGroupSpecs/0/maxReplicas", "value": 7}
        await kube.patch_cluster(target.namespace, PatchCluster(name, (test, grow)))
        group = (await api.call("GET", kinds.RAY_CLUSTER.path(target.namespace, name)))["spec"]["workerGroupSpecs"][0]
        assert (group["replicas"], group["maxReplicas"]) == (2, 7)
        with pytest.raises(Conflict):
            await kube.patch_cluster(target.namespace, PatchCluster(name, ({**test, "value": "gateway"}, grow)))
        with pytest.raises(NotFound):
            await kube.patch_cluster(target.namespace, PatchCluster(f"{name}-gone", (test, grow)))

    async def test_a_delete_spares_another_object_of_the_name(self, target, kube, api, name):
        path = kinds.SERVICE.path(target.namespace, name)
        await kube.apply(target.namespace, service(name))
        uid = (await api.call("GET", path))["metadata"]["uid"]
        await kube.delete(target.namespace, Delete("v1", "Service", name, str(uuid.uuid4())))
        assert (await api.call("GET", path))["metadata"]["uid"] == uid
        await kube.delete(target.namespace, Delete("v1", "Service", name, uid))
        with pytest.raises(NotFound):
            await api.call("GET", path)
        await kube.delete(target.namespace, Delete("v1", "Service", name, uid))

    async def test_children_go_with_their_owner(self, target, kube, api, name):
        owner = await self.make(target, name)
        await kube.apply(target.namespace, service(name, owner))
        await api.call("DELETE", kinds.SERVING_DEPLOYMENT.path(target.namespace, name))

        async def gone() -> bool:
            return not (await kube.list_children(owner.key)).objects

        await eventually("the Service is collected", gone)

    async def test_keys_are_listed_without_their_objects(self, target, kube, name):
        for number in range(3):
            await self.make(target, f"{name}{number}")
        found = {key.name for key in await kube.list_keys() if key.name.startswith(name)}
        assert found == {f"{name}0", f"{name}1", f"{name}2"}
        assert {key.namespace for key in await kube.list_keys()} == {target.namespace}

    async def test_a_list_comes_in_pages_that_go_on_where_the_last_ended(self, target, api, name):
        for number in range(5):
            await self.make(target, f"{name}{number}")
        path, found, query = kinds.SERVING_DEPLOYMENT.path(target.namespace), [], {"limit": "2"}
        while True:
            page = await api.call("GET", path, query=query)
            found += [item["metadata"]["name"] for item in page["items"]]
            if not (token := page["metadata"].get("continue")):
                break
            assert len(page["items"]) == 2
            query = {"limit": "2", "continue": token}
        assert [item for item in found if item.startswith(name)] == [f"{name}{number}" for number in range(5)]

    async def test_repeated_events_are_one_with_a_count(self, target, kube, api, name):
        made = await self.make(target, name)
        now = made.created_at
        log = EventLog(lambda: now)
        event = Event("Warning", "RayUnreachable", "no answer in time")
        for _ in range(3):
            await kube.apply_event(target.namespace, log.document(made, event))
            now += 60
        await kube.apply_event(target.namespace, log.document(made, Event("Normal", "Scaled", "from 1 to 2")))
        listed = (await api.call("GET", kinds.EVENT.path(target.namespace)))["items"]
        ours = [item for item in listed if item["involvedObject"].get("uid") == made.uid]
        assert sorted((item["reason"], item["count"]) for item in ours) == [("RayUnreachable", 3), ("Scaled", 1)]

    async def test_nothing_is_made_in_a_namespace_that_ends_and_it_says_so(self, target, kube, name):
        """Last: the namespace is gone afterwards. A finalizer holds it in termination meanwhile."""
        made = await self.make(target, name, finalizers=["example.com/theirs"])
        assert not await kube.namespace_terminating(target.namespace)
        await target.terminate(target.namespace)

        async def ends() -> bool:
            try:
                await kube.apply(target.namespace, service(f"{name}-late"))
            except NamespaceTerminating:
                return True
            return False

        await eventually("creation is refused", ends)
        assert await kube.namespace_terminating(target.namespace)

        async def deleted() -> Resource | None:
            found = await kube.get_resource(made.key)
            return found if found is not None and found.deleted_at is not None else None

        found = await eventually("what is in it is deleted", deleted)
        assert (await kube.patch_status(found, {"replicas": 0})).status == {"replicas": 0}

        async def released() -> bool:
            current = await kube.get_resource(made.key)
            return current is None or await kube.set_finalizer(current, "example.com/theirs", present=False) is None

        await released()
