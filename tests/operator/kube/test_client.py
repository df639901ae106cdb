"""Kube against the fake API server: the contract that the real one is held to as well, and trouble on the way."""

import asyncio
import time

import pytest

from octavo_api.errors import ConfigurationError
from octavo_operator.kube.api import HttpApi, load_configuration
from octavo_operator.kube.client import Kube, merge_patch
from octavo_operator.kube.errors import (
    Conflict,
    Forbidden,
    KindMissing,
    KubeError,
    NamespaceTerminating,
    NotFound,
    Rejected,
    TooManyRequests,
    Unavailable,
    error_of,
)
from octavo_operator.model import kinds
from octavo_operator.model.observed import Key
from octavo_testing.operator.fakes.api_http import Trouble
from octavo_testing.operator.fakes.contract_kube import KubeContract, Target, deployment


class TestFakeApiServer(KubeContract):
    @pytest.fixture
    def target(self, api_server, http_api):
        async def terminate(namespace):
            api_server.api.delete_namespace(namespace)

        return Target(http_api, "default", terminate)


KEY = Key("default", "books")


def always(_):
    return True


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, TooManyRequests),
        (500, Unavailable),
        (503, Unavailable),
        (401, Unavailable),
        (403, Forbidden),
        (400, Rejected),
    ],
)
async def test_each_answer_has_its_error(api_server, kube, status, kind):
    api_server.troubles.append(Trouble(always, status=status, retry_after="7"))
    with pytest.raises(kind) as caught:
        await kube.get_resource(KEY)
    assert type(caught.value) is kind
    assert f"servingdeployments/books: {status}: made to fail" in caught.value.message
    if status == 429:
        assert caught.value.retry_after == 7


async def test_a_broken_connection_and_a_missing_server_are_unavailable(api_server, kube):
    api_server.troubles.append(Trouble(always, times=9))
    with pytest.raises(Unavailable, match="servingdeployments/books"):
        await kube.get_resource(KEY)
    await api_server.__aexit__()
    with pytest.raises(Unavailable):
        await kube.get_resource(KEY)


async def test_a_server_that_does_not_answer_is_given_up_in_time(api_server):
    api = HttpApi(await load_configuration(), timeout_s=0.2)
    api_server.troubles.append(Trouble(always, status=200, delay=30))
    began = time.monotonic()
    with pytest.raises(Unavailable):
        await Kube(api).get_resource(KEY)
    assert time.monotonic() - began < 10
    await api.close()


async def test_wrong_credentials_are_unavailable_not_fatal(api_server, tmp_path):
    api_server.kubeconfig(tmp_path)
    api = HttpApi(await load_configuration())
    api_server.token = "rotated"
    with pytest.raises(Unavailable, match="401"):
        await Kube(api).get_resource(KEY)
    await api.close()


async def test_kuberay_missing_is_no_error_of_the_list(api_server, kube):
    api_server.api.kinds_missing.add("RayCluster")
    children = await kube.list_children(KEY)
    assert not children.kuberay_installed
    assert children.clusters == ()
    with pytest.raises(KindMissing):
        await kube.apply("default", {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "a"}})


async def test_one_failed_list_is_raised_as_itself_and_stops_the_others(api_server, kube):
    api_server.troubles.append(Trouble(lambda call: call.plural == "services", status=503))
    api_server.troubles.append(Trouble(lambda call: call.plural == "secrets", status=200, delay=60))
    async with asyncio.timeout(10):
        with pytest.raises(Unavailable, match="services"):
            await kube.list_children(KEY)


async def test_only_the_served_namespaces_are_listed(api_server, http_api):
    for namespace in ("default", "prod", "other"):
        api_server.api.namespaces[namespace] = False
        api_server.api.create("test", deployment(namespace, "books"))
    assert set(await Kube(http_api, ["prod"]).list_keys()) == {Key("prod", "books")}
    assert len(await Kube(http_api).list_keys()) == 3


async def test_a_long_list_is_read_to_its_end(api_server, kube):
    for number in range(1201):
        api_server.api.create("test", deployment("default", f"d{number}"))
    assert len(await kube.list_keys()) == 1201
    assert len([call for call in api_server.calls if call.verb == "list"]) == 3


async def test_endpoints_are_counted_once_and_only_where_ready(api_server, kube):
    def slice_of(name, service, endpoints):
        labels = {"kubernetes.io/service-name": service}
        metadata = {"namespace": "default", "name": name, "labels": labels}
        return {"kind": "EndpointSlice", "metadata": metadata, "endpoints": endpoints}

    ready, not_ready = {"ready": True}, {"ready": False}
    a = {"addresses": ["10.0.0.1"], "targetRef": {"uid": "a"}, "conditions": ready}
    b = {"addresses": ["10.0.0.2"], "targetRef": {"uid": "b"}, "conditions": not_ready}
    c = {"addresses": ["10.0.0.3"], "targetRef": {"uid": "c"}}
    api_server.api.create("test", slice_of("books-1", "books", [a, b]))
    api_server.api.create("test", slice_of("books-2", "books", [a, c]))
    api_server.api.create("test", slice_of("other-1", "other", [{**c, "targetRef": {"uid": "d"}}]))
    assert await kube.ready_endpoints("default", "books") == 2


async def test_a_quota_on_events_is_not_a_terminating_namespace(api_server, kube):
    for status in (403, 422):
        api_server.troubles.append(Trouble(lambda call: call.plural == "events", status=status))
        assert not await kube.namespace_terminating("default")


async def test_secrets_are_never_listed(api_server, kube):
    await kube.list_children(KEY)
    assert {call.verb for call in api_server.calls if call.plural == "secrets"} == {"get"}


async def test_a_kind_that_is_not_ours_is_not_written(kube):
    with pytest.raises(Rejected, match="Pod of v1"):
        await kube.apply("default", {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}})


async def test_no_configuration_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(ConfigurationError, match="set KUBECONFIG"):
        await load_configuration()


def test_a_merge_patch_makes_the_new_of_the_old():
    old = {"a": 1, "b": {"c": 1, "d": {"e": 2}}, "f": [1, 2], "g": {"h": 1}, "same": {"x": 1}}
    new = {"b": {"d": {"e": 3}}, "f": [2], "g": "word", "i": {"j": 1}, "same": {"x": 1}}
    patch = merge_patch(old, new)
    assert patch == {"a": None, "b": {"c": None, "d": {"e": 3}}, "f": [2], "g": "word", "i": {"j": 1}}
    assert merge_patch(new, new) == {}


def test_errors_do_not_need_a_status_to_be_understood():
    assert type(error_of("GET /x", 404, {}, b"404 page not found\n")) is KindMissing
    assert type(error_of("GET /x", 502, {}, b"<html>bad gateway")) is Unavailable
    assert error_of("GET /x", 503, {"Retry-After": "soon"}, b"").retry_after is None
    terminating = b'{"kind":"Status","details":{"causes":[{"reason":"NamespaceTerminating"}]}}'
    assert type(error_of("POST /x", 403, {}, terminating)) is NamespaceTerminating
    assert type(error_of("PATCH /x", 422, {}, b'{"kind":"Status","reason":"Invalid","details":{}}')) is Conflict
    named = b'{"kind":"Status","details":{"name":"a","causes":[{"reason":"FieldValueInvalid"}]}}'
    assert type(error_of("PATCH /x", 422, {}, named)) is Rejected
    assert type(error_of("GET /x", 404, {}, b'{"kind":"Status","details":{"name":"a"}}')) is NotFound
    assert issubclass(NamespaceTerminating, KubeError)


def test_paths_of_kinds():
    assert kinds.SERVICE.path("a", "b") == "/api/v1/namespaces/a/services/b"
    assert kinds.RAY_CLUSTER.path(None) == "/apis/ray.io/v1/rayclusters"
    assert kinds.SERVING_DEPLOYMENT.path("a", "b", "status").endswith("/namespaces/a/servingdeployments/b/status")
