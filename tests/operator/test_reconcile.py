"""One look at a deployment, over HTTP to both fakes: observe, plan, act, say so."""

import asyncio
import json
import logging
import math
import time

import pytest

from octavo_api.deployment import FINALIZER
from octavo_operator.kube.ray_tokens import RayTokens
from octavo_operator.model.actions import (
    Apply,
    CreateSecret,
    DeployApplication,
    Event,
    Plan,
    RemoveApplication,
    SetFinalizer,
)
from octavo_operator.model.observed import Key, Reach
from octavo_operator.observe import observe
from octavo_testing.operator.deployments import DEFAULTS, KEY, external, secret, steady, stored
from octavo_testing.operator.fakes.api_http import Trouble
from octavo_testing.operator.fakes.contract_kube import deployment, service
from octavo_testing.operator.fakes.serve_http import Answer, FakeServe

TOKEN = "ray-token-of-the-tests"


class Planned:
    """Plans what it is told, and keeps what it was asked with."""

    def __init__(self, *plans: Plan) -> None:
        self.plans = list(plans)
        self.seen = []

    def __call__(self, resource, observed, now, defaults):
        self.seen.append((resource, observed))
        return self.plans.pop(0) if len(self.plans) > 1 else self.plans[0]


async def test_a_deployment_that_is_gone_is_forgotten(make):
    assert await make(Planned(steady())).reconcile(KEY) == math.inf


async def test_the_status_is_written_once_and_then_only_when_it_changes(api_server, make):
    api_server.api.create("user", deployment("default", "books"))
    reconciler = make(Planned(steady(status={"replicas": 1})))
    for _ in range(3):
        assert 27 <= await reconciler.reconcile(KEY) <= 33
    assert [call.verb for call in api_server.written()] == ["patch"]
    assert stored(api_server)["status"] == {"replicas": 1}
    assert reconciler.is_own_write(KEY, stored(api_server)["metadata"]["resourceVersion"])
    assert not reconciler.is_own_write(KEY, "1")


async def test_a_status_without_a_field_takes_it_away(api_server, make):
    api_server.api.create("user", deployment("default", "books"))
    reconciler = make(Planned(steady(status={"replicas": 1, "urls": {"a": "b"}}), steady(status={"urls": {"c": "d"}})))
    await reconciler.reconcile(KEY)
    await reconciler.reconcile(KEY)
    assert stored(api_server)["status"] == {"urls": {"c": "d"}}


async def test_short_delays_are_kept_and_long_ones_spread(api_server, make):
    api_server.api.create("user", deployment("default", "books"))
    assert await make(Planned(steady(delay=2.0))).reconcile(KEY) == 2.0
    reconciler = make(Planned(steady(delay=30.0)))
    delays = {await reconciler.reconcile(KEY) for _ in range(5)}
    assert len(delays) == 5
    assert all(27 <= delay <= 33 for delay in delays)


def made_service(api_server, name):
    """Returns its uid."""
    document = service(name)
    document["metadata"]["namespace"] = "default"
    return api_server.api.apply("octavo-operator", document)["metadata"]["uid"]


def port_of(api_server, name):
    (port,) = api_server.api.get("Service", "default", name)["spec"]["ports"]
    return port["port"]


async def test_actions_run_in_order_and_the_first_failure_ends_the_round(api_server, make):
    api_server.api.create("user", deployment("default", "books"))
    api_server.troubles.append(Trouble(lambda call: call.name == "second", status=403, times=99))
    actions = [Apply(service(name, port=8001), made_service(api_server, name)) for name in ("first", "second", "third")]
    reconciler = make(Planned(steady(*actions, status={"replicas": 0, "driftCorrections": ["now"]})))
    assert await reconciler.reconcile(KEY) < 3
    assert port_of(api_server, "first") == 8001
    assert port_of(api_server, "third") == 8000
    status = stored(api_server)["status"]
    assert status["replicas"] == 0
    assert "driftCorrections" not in status, "what did not happen is not remembered"
    assert status["lastError"]["reason"] == "Forbidden"
    assert "services/second: 403" in status["lastError"]["message"]
    (event,) = api_server.api.listed("Event", "default")
    assert (event["type"], event["reason"]) == ("Warning", "Forbidden")
    before = status
    await reconciler.reconcile(KEY)
    assert stored(api_server)["status"] == before, "the same failure is no news"
    (event,) = api_server.api.listed("Event", "default")
    assert event["count"] == 2
    api_server.troubles.clear()
    reconciler = make(Planned(steady(*actions, status={"replicas": 0})))
    assert await reconciler.reconcile(KEY) > 3
    assert port_of(api_server, "third") == 8001
    assert "lastError" not in stored(api_server)["status"]


async def test_repeated_trouble_is_tried_later_and_later(api_server, make):
    api_server.troubles.append(Trouble(lambda call: True, status=503, times=999))
    reconciler = make(Planned(steady()))
    delays = [await reconciler.reconcile(KEY) for _ in range(30)]
    assert max(delays[:3]) <= 8
    assert max(delays) > 30
    assert max(delays) <= 60
    api_server.troubles.clear()
    api_server.api.create("user", deployment("default", "books"))
    await reconciler.reconcile(KEY)
    api_server.troubles.append(Trouble(lambda call: True, status=503, times=9))
    assert await reconciler.reconcile(KEY) <= 2


async def test_a_server_that_asks_for_patience_gets_it(api_server, make):
    api_server.troubles.append(Trouble(lambda call: True, status=429, retry_after="17"))
    assert await make(Planned(steady())).reconcile(KEY) >= 17


async def test_an_edit_meanwhile_is_planned_on_again(api_server, make):
    """The status of an old plan is never written on a new spec."""
    api_server.api.create("user", deployment("default", "books"))

    def edit_first(resource, observed, now, defaults):
        if resource.generation == 1:
            api_server.api.edit("ServingDeployment", "default", "books", lambda found: found["spec"].update(replicas=2))
        return steady(status={"observedGeneration": resource.generation})

    reconciler = make(edit_first)
    assert await reconciler.reconcile(KEY) <= 2
    assert "status" not in stored(api_server)
    await reconciler.reconcile(KEY)
    assert stored(api_server)["status"] == {"observedGeneration": 2}


async def test_a_finalizer_and_the_status_are_written_in_one_round(api_server, make):
    api_server.api.create("user", deployment("default", "books"))
    reconciler = make(Planned(steady(SetFinalizer(True), status={"replicas": 0})))
    assert await reconciler.reconcile(KEY) > 20
    found = stored(api_server)
    assert found["metadata"]["finalizers"] == [FINALIZER]
    assert found["status"] == {"replicas": 0}


async def test_the_last_finalizer_ends_the_deployment_and_its_event_is_told(api_server, make):
    document = deployment("default", "books", finalizers=[FINALIZER])
    api_server.api.create("user", document)
    api_server.api.delete("ServingDeployment", "default", "books")
    event = Event("Warning", "CleanupAbandoned", "Ray does not answer")
    assert await make(Planned(steady(SetFinalizer(False), events=[event]))).reconcile(KEY) == math.inf
    assert stored(api_server) is None
    assert [found["reason"] for found in api_server.api.listed("Event", "default")] == ["CleanupAbandoned"]


async def test_in_a_namespace_that_ends_nothing_is_made_and_nothing_fails(api_server, make):
    api_server.api.create("user", deployment("default", "books", finalizers=["example.com/held"]))
    api_server.api.delete("ServingDeployment", "default", "books")
    api_server.api.delete_namespace("default")
    planner = Planned(steady(Apply(service("books"))), steady())
    assert await make(planner).reconcile(KEY) > 20
    assert [observed.namespace_terminating for _, observed in planner.seen] == [False, True]
    assert api_server.api.listed("Service", "default") == []


async def test_an_event_that_cannot_be_written_stops_nothing(api_server, make):
    api_server.api.create("user", deployment("default", "books"))
    api_server.troubles.append(Trouble(lambda call: call.plural == "events", status=403, times=9))
    event = Event("Normal", "Scaled", "from 1 to 2")
    assert await make(Planned(steady(events=[event]))).reconcile(KEY) > 20
    assert stored(api_server)["status"] == {"observedGeneration": 1}


async def test_secrets_are_made_and_used_and_never_seen_again(api_server, serve_client, kube, make, caplog):
    """Managed: the token that was made is the one that the dashboard is asked with."""
    caplog.set_level(logging.DEBUG)
    api_server.api.create("user", deployment("default", "books"))
    owned = {"serving.octavo.dev/deployment": "books"}
    secret_document = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "books-ray-token", "labels": owned}}
    await make(Planned(steady(CreateSecret(secret_document, ("auth_token",))))).reconcile(KEY)
    token = await kube.get_secret_value("default", "books-ray-token", "auth_token")
    assert token is not None
    async with FakeServe(token=token.decode()) as serve:
        application = {"name": "books", "args": {"owner": str(KEY)}, "deployments": []}
        reconciler = make(Planned(steady(DeployApplication(serve.address, application, "Disabled"))))
        assert await reconciler.reconcile(KEY) > 20
        assert serve.puts[0] == {"proxy_location": "Disabled", "applications": [application]}
    shown = json.dumps([stored(api_server), api_server.api.listed("Event", "default")])
    assert token.decode() not in caplog.text + shown


async def test_an_application_is_put_and_removed_by_its_owner_only(api_server, ray_serve, make):
    external(api_server, ray_serve.address)
    theirs = ray_serve.foreign("default.books", args={"owner": "prod/other"})
    ours = {"name": "default.books", "route_prefix": "/default/books", "args": {"owner": str(KEY)}, "deployments": []}
    await make(Planned(steady(DeployApplication(ray_serve.address, ours)))).reconcile(KEY)
    assert stored(api_server)["status"]["lastError"]["reason"] == "ApplicationNameConflict"
    await make(Planned(steady(RemoveApplication(ray_serve.address, "default.books")))).reconcile(KEY)
    assert ray_serve.ray.applications["default.books"].config == theirs
    assert not ray_serve.ray.applications["default.books"].deleting


async def test_a_token_in_a_secret_is_used_as_it_is_now(api_server, kube, serve_client):
    async with FakeServe(token="new") as serve:
        reference = {"name": "ray", "key": "token"}
        external(
            api_server,
            serve.address,
            rayCluster={"external": {"dashboardURL": f"{serve.address}/", "authSecretRef": reference}},
        )
        resource = await kube.get_resource(KEY)

        async def seen():
            return await observe(kube, serve_client, RayTokens(kube), resource, DEFAULTS)

        found = await seen()
        assert found.missing_secrets == ("ray",)
        assert found.serve[serve.address].reach is Reach.AUTH_FAILED
        assert serve.calls == [], "without its token Ray is not asked"
        secret(api_server, "ray", other="x")
        assert (await seen()).missing_secrets == ("ray/token",)
        api_server.api.delete("Secret", "default", "ray")
        secret(api_server, "ray", token="old")
        assert (await seen()).serve[serve.address].reach is Reach.AUTH_FAILED
        api_server.api.delete("Secret", "default", "ray")
        secret(api_server, "ray", token="new\n")
        assert (await seen()).serve[serve.address].reach is Reach.OK


async def test_a_spec_that_is_not_understood_is_observed_and_can_be_deleted(api_server, kube, serve_client, ray_serve):
    external(api_server, ray_serve.address, engine={"fromTheFuture": 1})
    ray_serve.foreign("default.books", args={"owner": str(KEY)})
    seen = await observe(kube, serve_client, RayTokens(kube), await kube.get_resource(KEY), DEFAULTS)
    assert "default.books" in seen.serve[ray_serve.address].applications


async def test_what_a_managed_deployment_asks_for_and_is_not_there_is_seen(api_server, kube, serve_client):
    document = deployment("default", "books")
    document["spec"] = {
        "model": {"uri": "pvc://weights/model", "cache": {"claimName": "cache"}},
        "endpoint": {"tlsSecretRef": {"name": "tls"}, "apiKeySecretRef": {"name": "keys"}},
    }
    api_server.api.create("user", document)
    secret(api_server, "tls", **{"tls.crt": "c"})
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"namespace": "default", "name": "cache"}}
    api_server.api.create("user", claim)
    api_server.api.kinds_missing.add("RayCluster")
    seen = await observe(kube, serve_client, RayTokens(kube), await kube.get_resource(KEY), DEFAULTS)
    assert seen.missing_secrets == ("keys", "tls/tls.key")
    assert seen.missing_claims == ("weights",)
    assert not seen.kuberay_installed


# With the real plan


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


async def test_a_dead_ray_is_let_go_at_once_where_that_is_asked_for(api_server, ray_serve, make):
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


def annotate_forced(api_server):
    annotations = {"serving.octavo.dev/force-delete": "true"}
    api_server.api.edit(
        "ServingDeployment", "default", "books", lambda found: found["metadata"].update(annotations=annotations)
    )


async def test_forced_deletion_takes_the_application_out_where_ray_answers_and_waits_for_nothing(
    api_server, ray_serve, make
):
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
async def test_forced_deletion_ends_although_the_one_try_fails_and_says_so(api_server, ray_serve, make, status):
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


async def test_forced_deletion_waits_a_few_seconds_at_most_for_a_ray_that_hangs(
    api_server, ray_serve, make, monkeypatch
):
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


async def with_token(api_server, serve, make):
    """A deployment that serves on a Ray that asks for a token."""
    secret(api_server, "ray", auth_token=TOKEN)
    reference = {"dashboardURL": serve.address, "authSecretRef": {"name": "ray"}}
    external(api_server, serve.address, rayCluster={"external": reference})
    reconciler = make()
    await settle(reconciler, lambda: ready(api_server))
    return reconciler


async def test_in_a_namespace_that_goes_the_token_is_remembered_for_the_removal(api_server, make):
    async with FakeServe(token=TOKEN) as serve:
        reconciler = await with_token(api_server, serve, make)
        api_server.api.delete("Secret", "default", "ray")
        api_server.api.delete_namespace("default")
        api_server.api.delete("ServingDeployment", "default", "books")
        await settle(reconciler, lambda: stored(api_server) is None)
        assert "default.books" not in serve.ray.applications


async def test_a_remembered_token_goes_to_no_other_address_and_is_no_token_of_one_that_stays(api_server, make, kube):
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


async def test_after_a_restart_a_token_that_went_with_its_namespace_is_not_waited_for(api_server, make, caplog):
    async with FakeServe(token=TOKEN) as serve:
        await with_token(api_server, serve, make)
        api_server.api.delete("Secret", "default", "ray")
        api_server.api.delete("ServingDeployment", "default", "books")
        assert await make().reconcile(KEY) < 10
        assert stored(api_server) is not None, "somebody may make the Secret again"
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
