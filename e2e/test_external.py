"""From ``kubectl apply`` to tokens: a real API server, the operator with the chart's rights, and a real Ray."""

import json
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from octavo_testing import ray_host
from octavo_testing.kube.cluster import Cluster
from octavo_testing.kube.documents import deployment
from octavo_testing.kube.kubectl import Kubectl
from octavo_testing.kube.operator import Installation, Operator
from octavo_testing.kube.serving import Serving, complete
from octavo_testing.ray_host import RayHost
from octavo_testing.waiting import eventually
from octavo_testing.web import get

pytestmark = pytest.mark.full

FOREIGN = {"name": "somebody-else", "route_prefix": "/else", "import_path": "octavo_testing.apps.foreign:app"}
NAMESPACE = "external"
SEED = 11
SMALL: dict[str, Any] = {"engine": {"kvCacheMemoryBytes": "64Mi"}, "resources": {"limits": {"cpu": 1}}}


@pytest.fixture(scope="module")
def ray() -> Iterator[RayHost]:
    with ray_host.running(cpus=16) as host:
        # Its proxy and an application were there before us.
        host.serve({**host.settings, "applications": [FOREIGN]})
        eventually("theirs runs", lambda: host.applications()[FOREIGN["name"]]["status"] == "RUNNING")
        yield host


@pytest.fixture(scope="module")
def operator(installation: Installation) -> Iterator[Operator]:
    with installation.operator() as running:
        yield running


@pytest.fixture(scope="module")
def books(crd: Cluster, ray: RayHost, operator: Operator) -> Iterator[Serving]:
    """A deployment that serves. Tests edit it, and leave it serving."""
    crd.kubectl.run("create", "namespace", NAMESPACE)
    serving = apply(crd.kubectl.within(NAMESPACE), ray, "books")
    serving.wait_ready()
    yield serving
    serving.kubectl.run("delete", "sdep", "--all", "--timeout=60s")


def apply(namespace: Kubectl, ray: RayHost, name: str, **spec: Any) -> Serving:
    if namespace.find("secret", "ray-token") is None:
        namespace.run("create", "secret", "generic", "ray-token", f"--from-literal=auth_token={ray.token}")
    external = {"dashboardURL": ray.dashboard_url, "authSecretRef": {"name": "ray-token"}}
    namespace.apply(deployment(name, rayCluster={"external": external}, **{**SMALL, **spec}), server_side=True)
    return Serving(namespace, name)


def actors(ray: RayHost, serving: Serving, deployment_name: str) -> set[str]:
    """Ids of the running replicas' actors."""
    application = ray.applications().get(f"{serving.kubectl.namespace}.{serving.name}", {})
    replicas = application.get("deployments", {}).get(deployment_name, {}).get("replicas", [])
    return {replica["actor_id"] for replica in replicas if replica["state"] == "RUNNING"}


def test_tokens_come_through_serves_proxy_and_the_gateways_own_port(books: Serving, ray: RayHost) -> None:
    url = books.status["urls"]["http"]
    assert url == f"{ray.proxy_url}/{books.kubectl.namespace}/books/v1"
    through_proxy = complete(url, "books")
    assert through_proxy
    doors = json.loads(get(f"{url.removesuffix('/v1')}/doors"))
    own = next(door for door in doors_in(doors) if door.startswith("http://"))
    assert not own.endswith(f":{ray.proxy_url.rpartition(':')[2]}")
    assert complete(f"{own}/v1", "books") == through_proxy


def doors_in(answer: Any) -> list[str]:
    """As the operator reads it: a list of addresses, or an object whose values are such."""
    values = answer.values() if isinstance(answer, dict) else answer
    return [str(part) for value in values for part in (value if isinstance(value, list) else [value])]


def test_a_live_edit_keeps_every_replica(books: Serving, ray: RayHost) -> None:
    before = actors(ray, books, "Engine"), actors(ray, books, "Gateway")
    books.edit({"engine": {"maxNumQueuedReqs": 3}, "router": {"policy": "round_robin"}, "model": {"servedName": "b"}})
    books.wait_ready()
    assert (actors(ray, books, "Engine"), actors(ray, books, "Gateway")) == before
    assert complete(books.status["urls"]["http"], "b")
    books.edit({"model": {"servedName": None}})
    books.wait_ready()


def test_a_rolling_edit_replaces_the_engines_and_no_gateway(books: Serving, ray: RayHost) -> None:
    engines, gateways = actors(ray, books, "Engine"), actors(ray, books, "Gateway")
    books.edit({"engine": {"maxNumSeqs": 7}})
    books.wait_ready()
    assert not actors(ray, books, "Engine") & engines
    assert actors(ray, books, "Gateway") == gateways
    assert complete(books.status["urls"]["http"], "books")


def test_kubectl_scale_adds_and_takes_replicas(books: Serving, ray: RayHost) -> None:
    (first,) = actors(ray, books, "Engine")
    books.kubectl.run("scale", "sdep/books", "--replicas=2")
    books.wait_ready()
    assert len(actors(ray, books, "Engine")) == 2
    assert first in actors(ray, books, "Engine")
    assert books.status["readyReplicas"] == 2
    books.kubectl.run("scale", "sdep/books", "--replicas=1")
    books.wait_ready()
    eventually("one engine", lambda: len(actors(ray, books, "Engine")) == 1)


def test_suspend_frees_the_replicas_and_keeps_the_resource(books: Serving, ray: RayHost) -> None:
    books.edit({"suspend": True})
    try:
        books.wait("Ready", "False", "Suspended")
        eventually("Ray has it no more", lambda: f"{books.kubectl.namespace}.books" not in ray.applications())
        books.wait("Progressing", "False", "Suspended")
    finally:
        books.edit({"suspend": False})
    books.wait_ready()
    assert complete(books.status["urls"]["http"], "books")


def test_ready_waits_for_the_generation_that_was_applied_last(books: Serving, ray: RayHost) -> None:
    generation = books.edit({"engine": {"maxNumSeqs": 5}})
    books.wait_ready()
    ready = books.condition("Ready")
    assert ready["observedGeneration"] == generation
    application = ray.applications()[f"{books.kubectl.namespace}.books"]
    engine = next(d for d in application["deployed_app_config"]["deployments"] if d["name"] == "Engine")
    assert '"max_num_seqs": 5' in str(engine).replace("'", '"') or '"max_num_seqs":5' in str(engine)


def test_a_foreign_change_is_set_back(books: Serving, ray: RayHost) -> None:
    name = f"{books.kubectl.namespace}.books"
    before = actors(ray, books, "Gateway")
    details = ray.applications()
    configs = [a["deployed_app_config"] for a in details.values() if a.get("deployed_app_config")]
    changed = [
        {
            **c,
            "deployments": [
                {**d, "user_config": {**d["user_config"], "drain_seconds": 1}} if d["name"] == "Gateway" else d
                for d in c["deployments"]
            ],
        }
        if c["name"] == name
        else c
        for c in configs
    ]
    wanted = next(c for c in configs if c["name"] == name)
    ray.serve({**ray.settings, "applications": changed})
    eventually("reverted", lambda: ray.applications()[name]["deployed_app_config"] == wanted, timeout_s=60)
    eventually("told", lambda: books.said("DriftCorrected"))
    eventually("the same gateway has taken it up", lambda: actors(ray, books, "Gateway") == before)
    books.wait_ready()


def test_a_deleted_deployment_leaves_ray_and_the_others_stay(books: Serving, ray: RayHost) -> None:
    namespace = books.kubectl
    pages = apply(namespace, ray, "pages")
    pages.wait_ready()
    kept = actors(ray, books, "Engine")
    namespace.run("delete", "sdep/pages", "--timeout=60s")
    assert set(ray.applications()) == {FOREIGN["name"], f"{namespace.namespace}.books"}
    assert actors(ray, books, "Engine") == kept
    assert complete(books.status["urls"]["http"], "books")


def test_a_wrong_token_is_named_and_the_right_one_heals(namespace: Kubectl, ray: RayHost, operator: Operator) -> None:
    namespace.run("create", "secret", "generic", "ray-token", "--from-literal=auth_token=wrong")
    serving = apply(namespace, ray, "books")
    serving.wait("RayClusterReady", "False", "AuthFailed")
    namespace.run("delete", "secret", "ray-token")
    namespace.run("create", "secret", "generic", "ray-token", f"--from-literal=auth_token={ray.token}")
    serving.wait_ready()
    for text in (str(serving.document), str(serving.events()), operator.log()):
        assert ray.token not in text
    namespace.run("delete", "sdep/books", "--timeout=60s")


def test_a_restart_of_the_operator_changes_nothing(books: Serving, ray: RayHost, operator: Operator) -> None:
    version = eventually("its status has come to rest", lambda: resting(books))
    before = actors(ray, books, "Engine"), actors(ray, books, "Gateway"), deployed_at(ray, books)
    operator.stop()
    try:
        time.sleep(1)
        assert complete(books.status["urls"]["http"], "books")
    finally:
        operator.start()
    time.sleep(5)
    assert (actors(ray, books, "Engine"), actors(ray, books, "Gateway"), deployed_at(ray, books)) == before
    assert books.document["metadata"]["resourceVersion"] == version


def resting(serving: Serving, for_s: float = 5) -> str | None:
    """Return its version if no client has written it for ``for_s`` seconds."""
    version = str(serving.document["metadata"]["resourceVersion"])
    time.sleep(for_s)
    return version if version == serving.document["metadata"]["resourceVersion"] else None


def deployed_at(ray: RayHost, serving: Serving) -> float:
    return float(ray.applications()[f"{serving.kubectl.namespace}.{serving.name}"]["last_deployed_time_s"])


def test_a_foreign_application_stays_while_ours_come_and_go_at_random(
    namespace: Kubectl, ray: RayHost, operator: Operator
) -> None:
    """Two of ours, changed before the last change is out: what is not ours is never touched."""
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    before = foreign(ray)
    present: set[str] = set()
    for step in range(10):
        name = rng.choice(["one", "two"])
        if name not in present:
            apply(namespace, ray, name)
            present.add(name)
        elif rng.random() < 0.5:
            Serving(namespace, name).edit({"engine": {"maxNumSeqs": 8 + step}})
        else:
            namespace.run("delete", f"sdep/{name}", "--timeout=90s")
            present.discard(name)
        time.sleep(rng.uniform(0, 2))
        assert foreign(ray) == before
    if present:
        namespace.run("delete", "sdep", "--all", "--timeout=90s")
    assert foreign(ray) == before
    assert get(f"{ray.proxy_url}/else") == "here"
    assert not [name for name in ray.applications() if name.startswith(f"{namespace.namespace}.")]


def foreign(ray: RayHost) -> tuple[Any, ...]:
    """Everything by which a touch would show: its configuration and its actors. Serve moves its time at each PUT."""
    application = ray.applications()[FOREIGN["name"]]
    replicas = application["deployments"]["Echo"]["replicas"]
    return (
        application["status"],
        application["deployed_app_config"],
        {(replica["replica_id"], replica["actor_id"], replica["state"]) for replica in replicas},
    )
