"""Life of deployments on external Rays over HTTP with the real plan, until their forced deletion."""

import asyncio
import math
import time

import pytest

from octavo_api.resource.deployment import FINALIZER
from octavo_operator.model.observed import Key
from octavo_testing.operator.deployments import KEY, external, secret, stored
from octavo_testing.operator.fakes.contract_kube import deployment
from octavo_testing.operator.fakes.serve_http import Answer, FakeServe

TOKEN = "ray-token-of-the-tests"


async def settle(reconciler, condition, seconds=30):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        delay = await reconciler.reconcile(KEY)
        if condition():
            return delay
        await asyncio.sleep(min(delay, 0.05))
    raise AssertionError("it never settles")


def ready(api_server):
    status = (stored(api_server) or {}).get("status", {})
    found = {item["type"]: item for item in status.get("conditions", ())}
    return found.get("Ready", {}).get("status") == "True"


def annotate_forced(api_server):
    annotations = {"serving.octavo.dev/force-delete": "true"}
    api_server.api.edit(
        "ServingDeployment", "default", "books", lambda found: found["metadata"].update(annotations=annotations)
    )


async def with_token(api_server, serve, make):
    """A deployment that serves on a Ray that asks for a token."""
    secret(api_server, "ray", auth_token=TOKEN)
    reference = {"dashboardURL": serve.address, "authSecretRef": {"name": "ray"}}
    external(api_server, serve.address, rayCluster={"external": reference})
    reconciler = make()
    await settle(reconciler, lambda: ready(api_server))
    return reconciler


async def test_external_from_apply_to_ready_to_gone(api_server, ray_serve, make):
    external(api_server, ray_serve.address)
    theirs = ray_serve.foreign("theirs")
    reconciler = make()
    await settle(reconciler, lambda: ready(api_server))
    status = stored(api_server)["status"]
    assert status["urls"]["http"] == f"{ray_serve.address}/default/books/v1"
    assert stored(api_server)["metadata"]["finalizers"] == [FINALIZER]
    puts = len(ray_serve.puts)
    assert await reconciler.reconcile(KEY) > 20
    assert len(ray_serve.puts) == puts, "what is right is left alone"
    ray_serve.answers.append(Answer(503, "", times=4))
    await reconciler.reconcile(KEY)
    await settle(reconciler, lambda: ready(api_server))
    ray_serve.ray.lose_everything()
    ray_serve.foreign("theirs")
    await settle(reconciler, lambda: ready(api_server) and "default.books" in ray_serve.ray.applications)
    api_server.api.delete("ServingDeployment", "default", "books")
    await settle(reconciler, lambda: stored(api_server) is None)
    assert {name: found.config for name, found in ray_serve.ray.applications.items()} == {"theirs": theirs}


async def test_forced_deletion_releases_a_dead_ray_at_once(api_server, ray_serve, make):
    external(api_server, ray_serve.address)
    reconciler = make()
    await settle(reconciler, lambda: ready(api_server))
    ray_serve.ray.dead = True
    api_server.api.delete("ServingDeployment", "default", "books")
    assert await reconciler.reconcile(KEY) < 10
    assert stored(api_server) is not None
    annotations = {"serving.octavo.dev/force-delete": "true"}
    api_server.api.edit(
        "ServingDeployment", "default", "books", lambda found: found["metadata"].update(annotations=annotations)
    )
    await settle(reconciler, lambda: stored(api_server) is None)
    assert "CleanupAbandoned" in {found["reason"] for found in api_server.api.listed("Event", "default")}


async def test_forced_deletion_removes_the_application_without_waiting(api_server, ray_serve, make):
    external(api_server, ray_serve.address)
    reconciler = make()
    await settle(reconciler, lambda: ready(api_server))
    api_server.api.delete("ServingDeployment", "default", "books")
    annotate_forced(api_server)
    assert await reconciler.reconcile(KEY) == math.inf
    assert stored(api_server) is None
    gone = ray_serve.ray.applications.get("default.books")
    assert gone is None or gone.deleting
    assert "CleanupAbandoned" not in {found["reason"] for found in api_server.api.listed("Event", "default")}


@pytest.mark.parametrize("status", [503, 400])
async def test_forced_deletion_ends_with_an_event_if_the_one_try_fails(api_server, ray_serve, make, status):
    external(api_server, ray_serve.address)
    reconciler = make()
    await settle(reconciler, lambda: ready(api_server))
    ray_serve.answers.append(Answer(status, "", times=99, method="PUT"))
    puts = len(ray_serve.puts)
    api_server.api.delete("ServingDeployment", "default", "books")
    annotate_forced(api_server)
    assert await reconciler.reconcile(KEY) == math.inf
    assert stored(api_server) is None
    assert len(ray_serve.puts) == puts
    (event,) = [one for one in api_server.api.listed("Event", "default") if one["reason"] == "CleanupAbandoned"]
    assert "default.books" in event["message"]


async def test_forced_deletion_waits_only_seconds_for_a_hanging_ray(api_server, ray_serve, make, monkeypatch):
    monkeypatch.setattr("octavo_operator.observe.FORCED_TIMEOUT_S", 0.2)
    external(api_server, ray_serve.address)
    reconciler = make()
    await settle(reconciler, lambda: ready(api_server))
    ray_serve.answers.append(Answer(200, "", times=99, delay=20))
    api_server.api.delete("ServingDeployment", "default", "books")
    annotate_forced(api_server)
    async with asyncio.timeout(10):
        assert await reconciler.reconcile(KEY) == math.inf
    (event,) = [one for one in api_server.api.listed("Event", "default") if one["reason"] == "CleanupAbandoned"]
    assert "no answer in time" in event["message"]


async def test_the_token_of_a_deleted_namespace_is_kept_for_the_removal(api_server, make):
    async with FakeServe(token=TOKEN) as serve:
        reconciler = await with_token(api_server, serve, make)
        api_server.api.delete("Secret", "default", "ray")
        api_server.api.delete_namespace("default")
        api_server.api.delete("ServingDeployment", "default", "books")
        await settle(reconciler, lambda: stored(api_server) is None)
        assert "default.books" not in serve.ray.applications


async def test_a_remembered_token_is_only_for_the_deletion_at_its_address(api_server, make, kube):
    async with FakeServe(token=TOKEN) as serve, FakeServe() as other:
        reconciler = await with_token(api_server, serve, make)
        api_server.api.delete("Secret", "default", "ray")
        calls = len(serve.calls)
        await reconciler.reconcile(KEY)
        assert len(serve.calls) == calls, "what is not being deleted needs its Secret"

        def move(found):
            found["spec"]["rayCluster"]["external"]["dashboardURL"] = other.address

        api_server.api.edit("ServingDeployment", "default", "books", move)
        api_server.api.delete("ServingDeployment", "default", "books")
        await settle(reconciler, lambda: stored(api_server) is None)
        assert other.calls
        assert TOKEN not in str([dict(headers) for headers in other.headers])


async def test_after_a_restart_a_token_lost_with_its_namespace_ends_deletion(api_server, make, caplog):
    async with FakeServe(token=TOKEN) as serve:
        await with_token(api_server, serve, make)
        api_server.api.delete("Secret", "default", "ray")
        api_server.api.delete("ServingDeployment", "default", "books")
        assert await make().reconcile(KEY) < 10
        assert stored(api_server) is not None, "a user may create the Secret again"
        api_server.api.delete_namespace("default")
        assert await make().reconcile(KEY) == math.inf
        assert stored(api_server) is None
        assert "default.books" in serve.ray.applications
        assert [record for record in caplog.records if "CleanupAbandoned: application default.books" in record.message]


async def test_two_clients_of_one_ray_and_a_broken_one_do_not_disturb_each_other(api_server, ray_serve, make):
    external(api_server, ray_serve.address)
    external(api_server, ray_serve.address, name="films")
    api_server.api.create("user", deployment("default", "wrong") | {"spec": {"model": {"uri": "ftp://nowhere"}}})
    reconciler = make()
    await asyncio.gather(*(reconciler.reconcile(Key("default", name)) for name in ("books", "films", "wrong")))
    assert set(ray_serve.ray.applications) == {"default.books", "default.films"}
    assert stored(api_server, "wrong")["status"]["lastError"]["reason"] == "InvalidSpec"
