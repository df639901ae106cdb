"""Objects of somebody else that have a name of ours: seen, named, never changed."""

import json
from dataclasses import replace

import pytest

from octavo_operator.kube.client import resource_of
from octavo_operator.kube.ray_tokens import RayTokens
from octavo_operator.model.resource import parse_spec
from octavo_operator.objects.ownership import needed_objects
from octavo_operator.observe import observe
from octavo_operator.plan import plan
from octavo_testing.operator.deployments import DEFAULTS, KEY, steady, stored
from octavo_testing.operator.fakes.contract_kube import deployment


def somebodys(kind):
    spec = {
        "Service": {"spec": {"ports": [{"port": 80}], "selector": {"app": "theirs"}}},
        "Secret": {"data": {"password": "c2VjcmV0"}},
        "PodDisruptionBudget": {"spec": {"minAvailable": 7}},
        "NetworkPolicy": {"spec": {"podSelector": {"matchLabels": {"app": "theirs"}}}},
        "RayCluster": {"spec": {"rayVersion": "1.0", "workerGroupSpecs": []}},
    }[kind]
    return {"kind": kind, "metadata": {"namespace": "default", "labels": {"app": "theirs"}}, **spec}


NEEDED = ["Secret", "RayCluster", "Service", "PodDisruptionBudget", "NetworkPolicy"]


def managed(api_server):
    document = deployment("default", "books")
    document["spec"] |= {"replicas": 2, "rayCluster": {"managed": {"networkPolicy": True}}}
    return api_server.api.create("user", document)


def take(api_server, kind):
    """Somebody makes an object of the name that ours needs."""
    wanted = needed_objects(KEY, parse_spec(resource_of(stored(api_server))))
    (name,) = (name for one, name in wanted if one.kind == kind)
    document = somebodys(kind)
    document["metadata"]["name"] = name
    return api_server.api.create("somebody", document)


@pytest.mark.parametrize("kind", NEEDED)
async def test_a_foreign_object_is_reported_and_nothing_else_is_written(api_server, make, kind):
    managed(api_server)
    theirs = take(api_server, kind)
    await make().reconcile(KEY)
    (conflict,) = [item for item in stored(api_server)["status"]["conditions"] if item["type"] == "SpecValid"]
    assert conflict["reason"] == "ObjectNameConflict"
    assert theirs["metadata"]["name"] in conflict["message"]
    assert {call.plural for call in api_server.written()} == {"servingdeployments", "events"}
    assert api_server.api.get(kind, "default", theirs["metadata"]["name"]) == theirs
    api_server.api.delete(kind, "default", theirs["metadata"]["name"])
    await make().reconcile(KEY)
    assert "ObjectNameConflict" not in json.dumps(stored(api_server)["status"]["conditions"])
    assert api_server.api.get(kind, "default", theirs["metadata"]["name"])


@pytest.mark.parametrize("kind", NEEDED)
async def test_an_object_created_after_the_observation_is_not_changed(api_server, make, kind):
    managed(api_server)
    theirs = []

    def late(resource, observed, now, defaults):
        if not theirs:
            theirs.append(take(api_server, kind))
        return plan(resource, observed, now, defaults)

    reconciler = make(late)
    assert await reconciler.reconcile(KEY) <= 2, "planned anew"
    await reconciler.reconcile(KEY)
    assert "ObjectNameConflict" in json.dumps(stored(api_server)["status"]["conditions"])
    assert api_server.api.get(kind, "default", theirs[0]["metadata"]["name"]) == theirs[0]
    later = NEEDED[NEEDED.index(kind) + 1 :]
    assert not [found for other in later for found in api_server.api.listed(other)], "what comes after is not made"


@pytest.mark.parametrize("kind", ["Service", "PodDisruptionBudget", "NetworkPolicy"])
async def test_an_object_replaced_after_the_observation_is_not_changed(api_server, make, kind):
    managed(api_server)
    await make().reconcile(KEY)
    theirs = []

    def late(resource, observed, now, defaults):
        ((_, name),) = [child for child in observed.children if child[0] == kind]
        if not theirs:
            spoiled = {**observed.children, (kind, name): {**observed.children[kind, name], "spec": {}}}
            api_server.api.delete(kind, "default", name)
            theirs.append(take(api_server, kind))
            return plan(resource, replace(observed, children=spoiled), now, defaults)
        return steady()

    assert await make(late).reconcile(KEY) <= 2
    assert api_server.api.get(kind, "default", theirs[0]["metadata"]["name"]) == theirs[0]


async def test_pods_behind_a_service_of_somebody_else_are_no_gateways(api_server, kube, serve_client):
    managed(api_server)
    take(api_server, "Service")
    metadata = {"namespace": "default", "name": "books-1", "labels": {"kubernetes.io/service-name": "books"}}
    endpoints = [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}]
    api_server.api.create("user", {"kind": "EndpointSlice", "metadata": metadata, "endpoints": endpoints})
    assert await kube.ready_endpoints("default", "books") == 1
    seen = await observe(kube, serve_client, RayTokens(kube), await kube.get_resource(KEY), DEFAULTS)
    assert seen.foreign == (("Service", "books"),)
    assert seen.ready_gateways == 0
