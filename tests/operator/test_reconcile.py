"""One reconcile over HTTP to both fakes, with a given plan: writes, failures, events and delays."""

import json
import logging
import math

from octavo_api.resource.deployment import FINALIZER
from octavo_operator.model.actions import (
    Apply,
    CreateSecret,
    DeployApplication,
    Event,
    Plan,
    RemoveApplication,
    SetFinalizer,
)
from octavo_testing.operator.deployments import KEY, external, steady, stored
from octavo_testing.operator.fakes.api_http import Trouble
from octavo_testing.operator.fakes.contract_kube import deployment, service
from octavo_testing.operator.fakes.serve_http import FakeServe


class Planned:
    """Plans what it is told, and keeps what it was asked with."""

    def __init__(self, *plans: Plan) -> None:
        self.plans = list(plans)
        self.seen = []

    def __call__(self, resource, observed, now, defaults):
        self.seen.append((resource, observed))
        return self.plans.pop(0) if len(self.plans) > 1 else self.plans[0]


def made_service(api_server, name):
    """Returns its uid."""
    document = service(name)
    document["metadata"]["namespace"] = "default"
    return api_server.api.apply("octavo-operator", document)["metadata"]["uid"]


def port_of(api_server, name):
    (port,) = api_server.api.get("Service", "default", name)["spec"]["ports"]
    return port["port"]


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


async def test_a_created_token_is_used_and_shown_nowhere(api_server, serve_client, kube, make, caplog):
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
