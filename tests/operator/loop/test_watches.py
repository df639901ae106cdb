"""Watches of the whole operator over HTTP: their extent, and every way in which a watch or a kind fails."""

import asyncio
import json

from octavo_operator.loop.handlers import WATCHED, WATCHED_CHILDREN, watch_names
from octavo_operator.model import names
from octavo_operator.model.observed import Key
from octavo_testing.operator.fakes.api_http import FakeApiServer, Trouble
from octavo_testing.operator.fakes.contract_kube import deployment
from octavo_testing.operator.fakes.serve_http import FakeServe
from octavo_testing.operator.running import create, get, ready, running, status, until, watching


async def wait_observed(server: FakeApiServer, ray: FakeServe, name: str) -> None:
    """Create a deployment and wait until the watch reports it. Resyncs come once an hour."""
    create(server, ray.address, name)
    await until(f"{name} is seen", lambda: "observedGeneration" in status(server, name), 60)


async def test_only_our_objects_are_watched_and_no_kind_or_namespace(api_server):
    async with running():
        await until("it watches", lambda: len(api_server.streams) == len(WATCHED))
        selectors = {stream.plural: stream.request.query.get("labelSelector") for stream in api_server.streams}
        children = {kind.plural: names.DEPLOYMENT_LABEL for kind in WATCHED_CHILDREN}
        assert selectors == {"servingdeployments": None, **children}
        assert {call.plural for call in api_server.calls if call.verb in ("list", "watch")} == set(selectors)


async def test_own_status_writes_cause_no_reconcile(api_server, ray_serve):
    async with running() as operator:
        create(api_server, ray_serve.address)
        await until("ready", lambda: ready(api_server))
        await asyncio.sleep(1)
        looks = len([call for call in api_server.calls if call.verb == "get" and call.name == "books"])
        await asyncio.sleep(1)
        assert len([call for call in api_server.calls if call.verb == "get" and call.name == "books"]) == looks
        assert Key("default", "books") in operator.queue


async def test_an_external_change_of_a_child_wakes_its_deployment(api_server):
    api_server.api.create("user", deployment("default", "films"))
    async with running():
        await until("the cluster is made", lambda: api_server.api.listed("RayCluster", "default"))
        await until("the Service is made", lambda: api_server.api.get("Service", "default", "films"))
        (cluster,) = api_server.api.listed("RayCluster", "default")
        api_server.api.delete("RayCluster", "default", cluster["metadata"]["name"])
        await until("it is created again", lambda: api_server.api.listed("RayCluster", "default"))
        assert api_server.api.listed("RayCluster", "default")[0]["metadata"]["uid"] != cluster["metadata"]["uid"]
        api_server.api.edit("Service", "default", "films", lambda found: found["spec"].update(type="NodePort"))
        await until(
            "it is reverted", lambda: api_server.api.get("Service", "default", "films")["spec"]["type"] != "NodePort"
        )


async def test_each_given_namespace_is_watched_and_no_other(api_server, ray_serve):
    for namespace in ("one", "two", "three"):
        api_server.api.namespaces[namespace] = False
    async with running(namespaces=("one", "two")) as operator:
        await until("it watches", lambda: len(api_server.streams) == 2 * len(WATCHED))
        assert set(operator.watches.ages()) == set(watch_names(WATCHED, ("one", "two")))
        for namespace in ("one", "two", "three"):
            create(api_server, ray_serve.address, namespace=namespace)
        await until("ready", lambda: ready(api_server, namespace="one") and ready(api_server, namespace="two"))
        assert not status(api_server, namespace="three")


async def test_kuberay_installed_late_needs_no_restart(api_server):
    api_server.api.kinds_missing.add("RayCluster")
    api_server.api.create("user", deployment("default", "films"))
    async with running() as operator:
        await until("it is reported", lambda: "KubeRayNotInstalled" in json.dumps(status(api_server, "films")))
        assert (await get(operator, "/healthz"))[0] == 200
        api_server.api.kinds_missing.clear()
        await until("the cluster is made", lambda: api_server.api.listed("RayCluster", "default"), 30)
        await until("clusters are watched", lambda: watching(api_server, "rayclusters"))


async def test_kuberay_that_goes_away_ends_nothing(api_server, ray_serve):
    async with running():
        await until("clusters are watched", lambda: watching(api_server, "rayclusters"))
        api_server.api.kinds_missing.add("RayCluster")
        api_server.cut([stream for stream in api_server.streams if stream.plural == "rayclusters"])
        create(api_server, ray_serve.address)
        await until("ready", lambda: ready(api_server))


async def test_our_own_definition_may_come_after_the_operator(api_server, ray_serve):
    api_server.api.kinds_missing.add("ServingDeployment")
    async with running():
        await until("services are watched", lambda: watching(api_server, "services"))
        api_server.api.kinds_missing.clear()
        create(api_server, ray_serve.address)
        await until("ready", lambda: ready(api_server))


async def test_an_api_server_that_is_away_at_the_start_is_waited_for(api_server, ray_serve):
    api_server.token = "another"
    async with running():
        await asyncio.sleep(0.5)
        api_server.token = "let-me-in"
        create(api_server, ray_serve.address)
        await until("ready", lambda: ready(api_server))


async def test_a_watch_that_goes_silent_is_replaced(api_server, ray_serve):
    async with running() as operator:
        await until("it watches", lambda: watching(api_server))
        api_server.silence()
        await wait_observed(api_server, ray_serve, "books")
        assert (await get(operator, "/healthz"))[0] == 200


async def test_a_watch_that_is_too_old_lists_again(api_server, ray_serve):
    async with running():
        await until("it watches", lambda: watching(api_server))
        api_server.end_with_gone()
        await wait_observed(api_server, ray_serve, "books")
        api_server.gone_by_status = True
        api_server.cut(api_server.streams)
        api_server.compact()
        await wait_observed(api_server, ray_serve, "films")


async def test_a_watch_that_is_cut_continues(api_server, ray_serve):
    async with running():
        await until("it watches", lambda: watching(api_server))
        for number in range(5):
            api_server.cut(api_server.streams)
            await wait_observed(api_server, ray_serve, f"d{number}")


async def test_a_slow_list_is_waited_for(api_server, ray_serve):
    api_server.troubles.append(
        Trouble(lambda call: call.verb == "list" and call.plural == "servingdeployments", status=200, delay=1.5)
    )
    create(api_server, ray_serve.address)
    async with running():
        await until("ready", lambda: ready(api_server))


async def test_an_error_in_the_watch_restarts_it_and_not_the_process(api_server, ray_serve):
    """An ERROR event of another kind than 410 ends kopf, a list that fails too often as well."""
    async with running():
        await until("it watches", lambda: watching(api_server))
        lists = lambda call: call.verb == "list" and call.plural == "servingdeployments"  # noqa: E731
        api_server.troubles.append(Trouble(lists, status=500, times=6))
        api_server.end_with_gone()
        await wait_observed(api_server, ray_serve, "books")
