"""The whole operator in this process: kopf's own watches over HTTP, the queue, the plan, and what a network does."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest

from octavo_operator.health import Limits
from octavo_operator.loop.handlers import WATCHED, WATCHED_CHILDREN, WatchTimes, watch_names
from octavo_operator.main import Operator
from octavo_operator.model import kinds, names
from octavo_operator.model.observed import Key
from octavo_operator.options import Options
from octavo_operator.serve.client import ServeClient
from octavo_testing.operator.fakes.api_http import FakeApiServer, Trouble
from octavo_testing.operator.fakes.contract_kube import deployment
from octavo_testing.operator.fakes.serve_http import RAY_VERSION, Answer, FakeServe

TIMES = WatchTimes(
    server_timeout=3,
    client_timeout=5,
    inactivity_timeout=0.7,
    reconnect_backoff=0.01,
    error_backoffs=(0.05, 0.1, 0.2),
)
OPTIONS = Options(image="octavo:1", health_port=0, metrics_port=0, resync_seconds=3600)


@asynccontextmanager
async def running(times: WatchTimes = TIMES, limits: Limits | None = None, **options) -> AsyncIterator[Operator]:
    """The operator, until the block ends; what it raised then is raised here."""
    from octavo_operator.plan import plan

    chosen = Options(**{name: options.get(name, getattr(OPTIONS, name)) for name in OPTIONS.__dataclass_fields__})

    def serve(session: aiohttp.ClientSession) -> ServeClient:
        return ServeClient.over_http(session, required_version=RAY_VERSION, fresh_s=0.05)

    operator = Operator(chosen, plan=plan, times=times, limits=limits, kinds_poll_s=0.1, connect_serve=serve)
    task = asyncio.create_task(operator.run())
    try:
        yield operator
    finally:
        if task.done():
            await task  # raises what ended it
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(what: str, condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        await asyncio.sleep(0.02)


def watching(server: FakeApiServer, plural: str = "servingdeployments") -> bool:
    return any(stream.plural == plural for stream in server.streams)


def create(server: FakeApiServer, address: str, name: str = "books", namespace: str = "default") -> None:
    document = deployment(namespace, name)
    document["spec"]["rayCluster"] = {"external": {"dashboardURL": address}}
    server.api.create("user", document)


def status(server: FakeApiServer, name: str = "books", namespace: str = "default") -> dict:
    return (server.api.get("ServingDeployment", namespace, name) or {}).get("status", {})


def ready(server: FakeApiServer, name: str = "books", namespace: str = "default") -> bool:
    """Of the current generation."""
    found = server.api.get("ServingDeployment", namespace, name)
    conditions = {one["type"]: one for one in status(server, name, namespace).get("conditions", ())}
    made = conditions.get("Ready", {})
    generation = found["metadata"]["generation"] if found else None
    return made.get("status") == "True" and made.get("observedGeneration") == generation


async def asked(operator: Operator, path: str) -> tuple[int, str]:
    assert operator.health is not None
    port = operator.health.ports[0]
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
        return response.status, await response.text()


async def test_from_apply_to_ready_to_edit_to_gone(api_server, ray_serve):
    async with running() as operator:
        await until("it watches", lambda: watching(api_server))
        create(api_server, ray_serve.address)
        await until("ready", lambda: ready(api_server))
        api_server.api.edit("ServingDeployment", "default", "books", lambda found: found["spec"].update(replicas=2))
        await until("ready again", lambda: ready(api_server) and status(api_server)["readyReplicas"] == 2)
        assert (await asked(operator, "/healthz"))[0] == 200
        assert (await asked(operator, "/readyz"))[0] == 200
        text = (await asked(operator, "/metrics"))[1]
        assert 'octavo_operator_resource_ready{name="books",resource_namespace="default"} 1.0' in text
        assert 'octavo_operator_reconcile_total{result="ok"}' in text
        assert 'octavo_operator_watch_age_seconds{resource="servingdeployments"}' in text
        assert "octavo_operator_queue_depth " in text
        api_server.api.delete("ServingDeployment", "default", "books")
        await until("gone", lambda: api_server.api.get("ServingDeployment", "default", "books") is None)
        assert not ray_serve.ray.applications
        await until("nothing is left to look at", lambda: Key("default", "books") not in operator.queue)
        assert "octavo_operator_resource_ready{" not in (await asked(operator, "/metrics"))[1]


async def test_kopf_leaves_no_mark_on_what_it_watches(api_server, ray_serve):
    async with running():
        create(api_server, ray_serve.address)
        await until("ready", lambda: ready(api_server))
        metadata = api_server.api.get("ServingDeployment", "default", "books")["metadata"]
        assert metadata["finalizers"] == ["serving.octavo.dev/operator"]
        assert "annotations" not in metadata
        assert "kopf" not in json.dumps(api_server.api.get("ServingDeployment", "default", "books"))


async def test_only_what_is_ours_is_watched_and_no_kind_or_namespace_is(api_server):
    async with running():
        await until("it watches", lambda: len(api_server.streams) == len(WATCHED))
        selectors = {stream.plural: stream.request.query.get("labelSelector") for stream in api_server.streams}
        children = {kind.plural: names.DEPLOYMENT_LABEL for kind in WATCHED_CHILDREN}
        assert selectors == {"servingdeployments": None, **children}
        assert {call.plural for call in api_server.calls if call.verb in ("list", "watch")} == set(selectors)


async def test_its_own_status_writes_are_no_news(api_server, ray_serve):
    async with running() as operator:
        create(api_server, ray_serve.address)
        await until("ready", lambda: ready(api_server))
        await asyncio.sleep(1)
        looks = len([call for call in api_server.calls if call.verb == "get" and call.name == "books"])
        await asyncio.sleep(1)
        assert len([call for call in api_server.calls if call.verb == "get" and call.name == "books"]) == looks
        assert Key("default", "books") in operator.queue


async def test_a_child_that_somebody_changes_wakes_its_deployment(api_server):
    api_server.api.create("user", deployment("default", "films"))
    async with running():
        await until("the cluster is made", lambda: api_server.api.listed("RayCluster", "default"))
        await until("the Service is made", lambda: api_server.api.get("Service", "default", "films"))
        (cluster,) = api_server.api.listed("RayCluster", "default")
        api_server.api.delete("RayCluster", "default", cluster["metadata"]["name"])
        await until("it is made again", lambda: api_server.api.listed("RayCluster", "default"))
        assert api_server.api.listed("RayCluster", "default")[0]["metadata"]["uid"] != cluster["metadata"]["uid"]
        api_server.api.edit("Service", "default", "films", lambda found: found["spec"].update(type="NodePort"))
        await until(
            "it is set back", lambda: api_server.api.get("Service", "default", "films")["spec"]["type"] != "NodePort"
        )


async def test_served_namespaces_are_watched_each_and_others_not(api_server, ray_serve):
    for namespace in ("one", "two", "three"):
        api_server.api.namespaces[namespace] = False
    async with running(namespaces=("one", "two")) as operator:
        await until("it watches", lambda: len(api_server.streams) == 2 * len(WATCHED))
        assert set(operator.watches.ages()) == set(watch_names(WATCHED, ("one", "two")))
        for namespace in ("one", "two", "three"):
            create(api_server, ray_serve.address, namespace=namespace)
        await until("ready", lambda: ready(api_server, namespace="one") and ready(api_server, namespace="two"))
        assert not status(api_server, namespace="three")


async def test_kuberay_that_comes_late_is_seen_without_a_restart(api_server):
    api_server.api.kinds_missing.add("RayCluster")
    api_server.api.create("user", deployment("default", "films"))
    async with running() as operator:
        await until("it says so", lambda: "KubeRayNotInstalled" in json.dumps(status(api_server, "films")))
        assert (await asked(operator, "/healthz"))[0] == 200
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


async def heard(server: FakeApiServer, ray: FakeServe, name: str) -> None:
    """A new deployment is seen by the watch: resyncs come once an hour."""
    create(server, ray.address, name)
    await until(f"{name} is seen", lambda: "observedGeneration" in status(server, name), 60)


async def test_a_watch_that_goes_silent_is_replaced(api_server, ray_serve):
    async with running() as operator:
        await until("it watches", lambda: watching(api_server))
        api_server.silence()
        await heard(api_server, ray_serve, "books")
        assert (await asked(operator, "/healthz"))[0] == 200


async def test_a_watch_that_is_too_old_starts_anew(api_server, ray_serve):
    async with running():
        await until("it watches", lambda: watching(api_server))
        api_server.end_with_gone()
        await heard(api_server, ray_serve, "books")
        api_server.gone_by_status = True
        api_server.cut(api_server.streams)
        api_server.compact()
        await heard(api_server, ray_serve, "films")


async def test_a_watch_that_is_cut_goes_on(api_server, ray_serve):
    async with running():
        await until("it watches", lambda: watching(api_server))
        for number in range(5):
            api_server.cut(api_server.streams)
            await heard(api_server, ray_serve, f"d{number}")


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
        await heard(api_server, ray_serve, "books")


async def test_a_deaf_operator_is_unhealthy(api_server, ray_serve):
    """Here nothing ends a silent watch: the probe must tell."""
    deaf = WatchTimes(server_timeout=3600, client_timeout=3600, inactivity_timeout=3600)
    async with running(deaf, Limits(watch_s=1.0)) as operator:
        await until("it watches", lambda: len(api_server.streams) == len(WATCHED))
        await asyncio.sleep(1.5)
        assert (await asked(operator, "/healthz"))[0] == 200, "bookmarks are signs of life"
        api_server.silence()
        await until("it has been silent for long", lambda: operator.watches.ages()["servingdeployments"] > 1.1)
        code, text = await asked(operator, "/healthz")
        assert code == 500
        assert "the watch of servingdeployments has received nothing" in text


async def test_an_operator_whose_api_server_is_away_is_not_unhealthy_for_it(api_server):
    async with running(limits=Limits(watch_s=1.5)) as operator:
        await until("it watches", lambda: len(api_server.streams) == len(WATCHED))
        api_server.troubles.append(Trouble(lambda call: True, times=10**6))
        api_server.cut(api_server.streams)
        for _ in range(8):
            await asyncio.sleep(0.4)
            assert (await asked(operator, "/healthz"))[0] == 200


async def test_a_stuck_queue_is_unhealthy(api_server, ray_serve):
    async with running(limits=Limits(queue_s=0.5)) as operator:
        ray_serve.answers.append(Answer(200, "{}", times=99, delay=60))
        create(api_server, ray_serve.address)
        await until("it hangs at Ray", lambda: operator.queue is not None and operator.queue.lag() > 0.6)
        code, text = await asked(operator, "/healthz")
        assert code == 500
        assert "a reconcile has waited or run" in text


async def test_it_ends_at_once_whatever_it_does(api_server, ray_serve):
    ray_serve.answers.append(Answer(200, "{}", times=99, delay=60))
    create(api_server, ray_serve.address)
    async with running():
        await until("it asks Ray", lambda: ray_serve.calls)
        began = time.monotonic()
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("script", range(30))
async def test_any_trouble_on_the_way_ends_as_the_specs_say(api_server, ray_serve, script):
    """Random edits and faults, in the network and out of it; then everything is as it should be."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    theirs = ray_serve.foreign("theirs")
    alive: set[str] = set()

    def trouble() -> None:
        match rng.randrange(9):
            case 0:
                api_server.silence()
            case 1:
                api_server.end_with_gone()
            case 2:
                api_server.cut(api_server.streams)
            case 3:
                kind = rng.choice([kinds.SERVING_DEPLOYMENT, kinds.EVENT])
                code = rng.choice([409, 429, 500, 503, 0])
                after = rng.random() < 0.5
                matches = lambda call: call.plural == kind.plural and call.verb == "patch"  # noqa: E731
                api_server.troubles.append(Trouble(matches, code, rng.randint(1, 4), after=after, retry_after="1"))
            case 4:
                slow = Trouble(lambda call: call.verb == "list", 200, rng.randint(1, 3), delay=rng.uniform(0.1, 0.8))
                api_server.troubles.append(slow)
            case 5:
                ray_serve.answers.append(Answer(rng.choice([0, 500, 503, 401]), "no", rng.randint(1, 6)))
            case 6:
                ray_serve.answers.append(Answer(503, "", 1, delay=rng.uniform(0.1, 0.5)))
            case 7:
                ray_serve.ray.lose_everything()
                ray_serve.foreign("theirs")
            case 8 if alive:
                name = f"default.{rng.choice(sorted(alive))}"
                kept = [found.config for other, found in ray_serve.ray.applications.items() if other != name]
                ray_serve.ray.put({"applications": kept})

    def user() -> None:
        name = f"d{rng.randrange(3)}"
        found = api_server.api.get("ServingDeployment", "default", name)
        if found is None:
            create(api_server, ray_serve.address, name)
            alive.add(name)
        elif "deletionTimestamp" in found["metadata"]:
            return
        elif rng.random() < 0.3:
            api_server.api.delete("ServingDeployment", "default", name)
            alive.discard(name)
        else:
            changes = {"replicas": rng.randint(1, 3)} | ({"suspend": rng.random() < 0.2})
            api_server.api.edit("ServingDeployment", "default", name, lambda found: found["spec"].update(changes))

    def right() -> bool:
        documents = {item["metadata"]["name"]: item for item in api_server.api.listed("ServingDeployment", "default")}
        if set(documents) != alive:
            return False
        running = {name for name in alive if not documents[name]["spec"].get("suspend")}
        if set(ray_serve.ray.applications) != {"theirs", *(f"default.{name}" for name in running)}:
            return False
        if not all(ready(api_server, name) for name in running):
            return False
        return all(status(api_server, name)["readyReplicas"] == documents[name]["spec"]["replicas"] for name in running)

    def look_again(operator: Operator, name: str) -> None:
        """Time is not faster here, so the regular look comes early; what the watches are to tell is left to them."""
        found = api_server.api.get("ServingDeployment", "default", name)
        if found and found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]:
            operator.queue.add(Key("default", name), 0.5)

    async with running() as operator:
        for _ in range(rng.randint(6, 14)):
            rng.choice([user, user, trouble])()
            await asyncio.sleep(rng.choice([0, 0.02, 0.1, 0.3]))
        deadline = time.monotonic() + 200
        while not right():
            assert time.monotonic() < deadline, (alive, api_server.api.objects, ray_serve.ray.applications)
            for name in sorted(alive):
                look_again(operator, name)
            await asyncio.sleep(0.1)
    assert ray_serve.ray.applications["theirs"].config == theirs
    assert not any(method == "DELETE" and "/serve/" in path for method, path in ray_serve.calls)
