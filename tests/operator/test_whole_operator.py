"""Life of a deployment with the whole operator over HTTP, and the end of the operator."""

import json
import time

from octavo_operator.model.observed import Key
from octavo_testing.operator.fakes.serve_http import Answer
from octavo_testing.operator.running import create, get, ready, running, status, until, watching


async def test_from_apply_to_ready_to_edit_to_gone(api_server, ray_serve):
    async with running() as operator:
        await until("it watches", lambda: watching(api_server))
        create(api_server, ray_serve.address)
        await until("ready", lambda: ready(api_server))
        api_server.api.edit("ServingDeployment", "default", "books", lambda found: found["spec"].update(replicas=2))
        await until("ready again", lambda: ready(api_server) and status(api_server)["readyReplicas"] == 2)
        assert (await get(operator, "/healthz"))[0] == 200
        assert (await get(operator, "/readyz"))[0] == 200
        text = (await get(operator, "/metrics"))[1]
        assert 'octavo_operator_resource_ready{name="books",resource_namespace="default"} 1.0' in text
        assert 'octavo_operator_reconcile_total{result="ok"}' in text
        assert 'octavo_operator_watch_age_seconds{resource="servingdeployments"}' in text
        assert "octavo_operator_queue_depth " in text
        api_server.api.delete("ServingDeployment", "default", "books")
        await until("gone", lambda: api_server.api.get("ServingDeployment", "default", "books") is None)
        assert not ray_serve.ray.applications
        await until("nothing is left to look at", lambda: Key("default", "books") not in operator.queue)
        assert "octavo_operator_resource_ready{" not in (await get(operator, "/metrics"))[1]


async def test_kopf_leaves_no_mark_on_watched_objects(api_server, ray_serve):
    async with running():
        create(api_server, ray_serve.address)
        await until("ready", lambda: ready(api_server))
        metadata = api_server.api.get("ServingDeployment", "default", "books")["metadata"]
        assert metadata["finalizers"] == ["serving.octavo.dev/operator"]
        assert "annotations" not in metadata
        assert "kopf" not in json.dumps(api_server.api.get("ServingDeployment", "default", "books"))


async def test_the_operator_ends_at_once_during_a_call(api_server, ray_serve):
    ray_serve.answers.append(Answer(200, "{}", times=99, delay=60))
    create(api_server, ray_serve.address)
    async with running():
        await until("it asks Ray", lambda: ray_serve.calls)
        began = time.monotonic()
    assert time.monotonic() - began < 10
