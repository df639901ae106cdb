# ruff: noqa: ASYNC110
"""The Serve client against the fake dashboard: the contract that Ray is held to as well, and trouble on the way."""

import asyncio
import copy
import json
import logging

import pytest

from octavo_operator.model.observed import Application, Deployment, Reach
from octavo_operator.serve.client import ServeClient
from octavo_operator.serve.details import (
    application_error,
    error_line,
    missing_package,
    parse_application,
    parse_listeners,
    proxy_url,
    with_plain_message,
)
from octavo_operator.serve.errors import (
    AuthFailed,
    Incompatible,
    NameConflict,
    Refused,
    ServeBusy,
    ServeError,
    Unreachable,
)
from octavo_operator.serve.merge import with_application, without_application
from octavo_operator.serve.rest import MAX_BYTES
from octavo_testing.operator.fakes.contract_serve import OWNER, ServeContract, Target
from octavo_testing.operator.fakes.serve_http import Answer, FakeServe

NAME = "prod.books"


def application(name: str = NAME, owner: str | None = OWNER, **changes):
    return {
        "name": name,
        "route_prefix": f"/{name}",
        "import_path": "octavo_serving.app:build",
        "args": {"model_uri": "embedded://smollm2", **({"owner": owner} if owner else {})},
        "deployments": [{"name": "Engine", "num_replicas": 1}],
        **changes,
    }


class TestFakeServe(ServeContract):
    @pytest.fixture
    def target(self, ray_serve, serve_client):
        return Target(serve_client, ray_serve.address, None, "words:build")


async def test_a_foreign_application_survives_many_deployments_at_once(ray_serve, serve_client):
    theirs = ray_serve.foreign("theirs")
    names = [f"prod.d{number}" for number in range(20)]

    async def live(name: str) -> None:
        for _ in range(3):
            await serve_client.deploy(ray_serve.address, None, application(name))
            await serve_client.remove(ray_serve.address, None, name, OWNER)
        await serve_client.deploy(ray_serve.address, None, application(name))

    await asyncio.gather(*(live(name) for name in names))
    assert set(ray_serve.ray.applications) == {"theirs", *names}
    assert all(put["applications"].count(theirs) == 1 for put in ray_serve.puts)
    assert not any(found.deleting for found in ray_serve.ray.applications.values())


async def test_what_was_lost_is_seen_as_missing(ray_serve, serve_client):
    await serve_client.deploy(ray_serve.address, None, application())
    ray_serve.ray.lose_everything()
    state = await serve_client.fetch(ray_serve.address, None, NAME)
    assert state.reach is Reach.OK
    assert state.applications == {}


@pytest.mark.parametrize(
    ("answer", "reach", "words"),
    [
        (Answer(503, "secret-body"), Reach.UNREACHABLE, "503"),
        (Answer(500, "secret-body"), Reach.UNREACHABLE, "500"),
        (Answer(401, "secret-body"), Reach.AUTH_FAILED, "rejects the token"),
        (Answer(403, "secret-body"), Reach.AUTH_FAILED, "403"),
        (Answer(404, "secret-body"), Reach.UNREACHABLE, "no Ray dashboard"),
        (Answer(501, "secret-body"), Reach.INCOMPATIBLE, "no Serve"),
        (Answer(200, "<html>secret-body"), Reach.UNREACHABLE, "not answer as a Ray dashboard"),
        (Answer(200, '["secret-body"]'), Reach.UNREACHABLE, "not answer as a Ray dashboard"),
        (Answer(200, '{"ray_version": "secret-body"}'), Reach.UNREACHABLE, "reports no Ray version"),
        (Answer(302, "secret-body", headers={"Location": "/elsewhere"}), Reach.UNREACHABLE, "redirects"),
        (Answer(0), Reach.UNREACHABLE, "127.0.0.1"),
    ],
)
async def test_failures_are_reported_without_the_foreign_body(ray_serve, serve_client, answer, reach, words):
    ray_serve.answers.append(copy.copy(answer))
    ray_serve.answers[0].times = 9
    state = await serve_client.fetch(ray_serve.address, None, NAME)
    assert state.reach is reach
    assert words in state.message
    assert "secret-body" not in state.message
    assert ("GET", "/elsewhere") not in ray_serve.calls


async def test_a_dashboard_that_is_gone_or_hangs_is_unreachable(ray_serve, serve_client, monkeypatch):
    monkeypatch.setattr("octavo_operator.serve.rest.TIMEOUT_S", 0.1)
    ray_serve.answers.append(Answer(200, "{}", delay=30))
    state = await serve_client.fetch(ray_serve.address, None, NAME)
    assert state.reach is Reach.UNREACHABLE
    assert "in time" in state.message
    state = await serve_client.fetch("http://127.0.0.1:9", None, NAME)
    assert state.reach is Reach.UNREACHABLE
    state = await serve_client.fetch("http://no-such-host.invalid:8265", None, NAME)
    assert state.reach is Reach.UNREACHABLE


async def test_an_endless_answer_is_not_read_to_its_end(ray_serve, serve_client, monkeypatch):
    monkeypatch.setattr("octavo_operator.serve.rest.MAX_BYTES", 1000)
    ray_serve.answers.append(Answer(200, "x" * 2000))
    state = await serve_client.fetch(ray_serve.address, None, NAME)
    assert "longer than 1000 bytes" in state.message
    assert MAX_BYTES > 2**20


async def test_the_token_goes_in_both_headers_and_nowhere_else(serve_client, caplog):
    caplog.set_level(logging.DEBUG)
    async with FakeServe(token="a-token") as serve:
        assert (await serve_client.fetch(serve.address, None, NAME)).reach is Reach.AUTH_FAILED
        wrong = await serve_client.fetch(serve.address, "b-token", NAME)
        assert wrong.reach is Reach.AUTH_FAILED
        assert (await serve_client.fetch(serve.address, "a-token", NAME)).reach is Reach.OK
        headers = serve.headers[-1]
        assert headers["Authorization"] == headers["X-Ray-Authorization"] == "Bearer a-token"
        assert not headers["User-Agent"].startswith("Mozilla")
        with pytest.raises(AuthFailed):
            await serve_client.deploy(serve.address, "b-token", application())
    assert "b-token" not in wrong.message + caplog.text
    assert "a-token" not in caplog.text


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(400, "secret-body", method="PUT"), Refused),
        (Answer(503, "secret-body", method="PUT"), Unreachable),
        (Answer(501, "secret-body"), Incompatible),
        (Answer(0, times=9, method="PUT"), Unreachable),
    ],
)
async def test_a_put_that_fails_says_how(ray_serve, serve_client, answer, kind):
    ray_serve.answers.append(copy.copy(answer))
    with pytest.raises(kind) as caught:
        await serve_client.deploy(ray_serve.address, None, application())
    assert "secret-body" not in caught.value.message


async def test_nothing_is_put_on_another_ray(ray_serve, serve_client):
    ray_serve.version = "2.44.1"
    state = await serve_client.fetch(ray_serve.address, None, NAME)
    assert state.reach is Reach.INCOMPATIBLE
    assert "the Ray there has version 2.44.1; this version of Octavo needs Ray 2.60" in state.message
    with pytest.raises(Incompatible):
        await serve_client.deploy(ray_serve.address, None, application())
    assert ray_serve.puts == []
    ray_serve.version = "2.60.9"
    assert (await serve_client.fetch(ray_serve.address, None, NAME)).reach is Reach.OK


def test_octavo_missing_in_ray_is_said_with_what_to_do():
    traceback = "Traceback (most recent call last):\n ...\nModuleNotFoundError: No module named 'octavo_serving.app'"
    failed = Application(NAME, "DEPLOY_FAILED", traceback)
    assert missing_package(failed) == "octavo_serving"
    assert with_plain_message(failed).message.startswith("octavo_serving cannot be imported in this Ray; install")
    assert with_plain_message(failed).missing_package == "octavo_serving"
    assert (
        with_plain_message(Application(NAME, "DEPLOY_FAILED", "Traceback\nValueError: no")).message == "ValueError: no"
    )
    assert with_plain_message(Application(NAME, "RUNNING", traceback)).message == traceback
    assert missing_package(Application(NAME, "RUNNING", traceback)) is None
    assert missing_package(Application(NAME, "DEPLOY_FAILED", "ModuleNotFoundError: No module named 'torch'")) is None


async def test_doors_are_asked_through_serves_proxy(ray_serve, serve_client):
    await serve_client.deploy(ray_serve.address, None, application())

    async def runs():
        state = await serve_client.fetch(ray_serve.address, None, NAME, with_listeners=True)
        return state if state.applications[NAME].status == "RUNNING" else None

    while (state := await runs()) is None:
        await asyncio.sleep(0.01)
    assert state.proxy_url == ray_serve.address
    assert state.listeners == ("http://10.0.0.1:40000", "grpc://10.0.0.1:40001")
    ray_serve.doors = {"doors": ["javascript:alert(1)", "http://10.0.0.1:1/path", 7, "http://u:p@h:1"]}
    assert (await runs()).listeners == ()
    ray_serve.doors = "nonsense"
    state = await runs()
    assert state.listeners == ()
    assert state.reach is Reach.OK


async def test_deployments_on_one_ray_share_a_read_and_see_their_changes(ray_serve, session):
    now = 0.0
    client = ServeClient.over_http(session, fresh_s=1.0, now=lambda: now)
    state = await asyncio.gather(*(client.fetch(ray_serve.address, None, f"d{number}") for number in range(50)))
    assert {one.reach for one in state} == {Reach.OK}
    assert len([call for call in ray_serve.calls if call[1].startswith("/api/serve")]) == 1
    await client.deploy(ray_serve.address, None, application())
    assert NAME in (await client.fetch(ray_serve.address, None, NAME)).applications
    ray_serve.ray.lose_everything()
    now = 1.5
    assert (await client.fetch(ray_serve.address, None, NAME)).applications == {}


async def test_a_token_does_not_read_what_another_token_read(session):
    async with FakeServe(token="right") as serve:
        client = ServeClient.over_http(session, fresh_s=60)
        assert (await client.fetch(serve.address, "right", NAME)).reach is Reach.OK
        assert (await client.fetch(serve.address, "wrong", NAME)).reach is Reach.AUTH_FAILED


# Merging, without a network


def details(*applications, **changes):
    shown = {
        config["name"]: {"status": "RUNNING", "deployed_app_config": config, "source": "declarative"}
        for config in applications
    }
    return {"controller_info": {"actor_id": "a"}, "applications": shown, "target_capacity": None, **changes}


def test_the_capacity_and_options_of_a_running_serve_are_kept():
    running = details(target_capacity=50.0, http_options={"port": 8001}, proxy_location="HeadOnly")
    body = with_application(running, application(), {"proxy_location": "Disabled"})
    assert body["target_capacity"] == 50.0
    assert body["http_options"] == {"port": 8001}
    assert body["proxy_location"] == "HeadOnly"
    fresh = {"controller_info": {}, "proxies": {}, "applications": {}, "target_capacity": None}
    assert with_application(fresh, application(), {"proxy_location": "Disabled"}) == {
        "proxy_location": "Disabled",
        "applications": [application()],
    }


def test_a_foreign_application_without_known_config_stops_the_put():
    state = details(application("theirs"))
    state["applications"]["theirs"]["deployed_app_config"] = None
    with pytest.raises(ServeBusy, match="theirs"):
        with_application(state, application())
    with pytest.raises(ServeBusy, match="theirs"):
        without_application(
            details() | {"applications": state["applications"] | details(application())["applications"]}, NAME, OWNER
        )


def test_one_that_goes_and_one_made_by_code_are_left_to_themselves():
    state = details(application("going"), application("code"))
    state["applications"]["going"] |= {"status": "DELETING", "deployed_app_config": None}
    state["applications"]["code"] |= {"source": "imperative", "deployed_app_config": None}
    assert [item["name"] for item in with_application(state, application())["applications"]] == [NAME]


def test_an_application_of_our_name_without_owner_is_a_conflict():
    state = details(application())
    state["applications"][NAME] |= {"source": "imperative", "deployed_app_config": None}
    with pytest.raises(NameConflict, match="not deployed by Octavo"):
        with_application(state, application())
    with pytest.raises(NameConflict, match="not deployed by Octavo"):
        with_application(details(application(owner=None)), application())
    assert without_application(details(application(owner=None)), NAME, OWNER) is None


def test_an_application_of_our_name_whose_owner_is_not_told_is_tried_again():
    state = details(application())
    state["applications"][NAME] |= {"deployed_app_config": None, "status": "DEPLOYING"}
    with pytest.raises(ServeBusy):
        with_application(state, application())


def test_nothing_is_put_to_remove_what_is_not_there():
    assert without_application(details(application("theirs")), NAME, OWNER) is None
    state = details(application())
    state["applications"][NAME]["status"] = "DELETING"
    assert without_application(state, NAME, OWNER) is None
    body = without_application(details(application(), application("theirs")), NAME, OWNER)
    assert body["applications"] == [application("theirs")]


# Reading Serve's details


def test_a_replicas_own_error_is_found_in_a_traceback():
    message = (
        "Traceback ...\nray.exceptions.RayTaskError\noctavo_api.errors.StartupError: model: no such file\nsay more"
    )
    assert error_line(message) == "model: no such file\nsay more"
    assert error_line("Traceback\n  File\nValueError: wrong\n\nand more") == "ValueError: wrong"
    assert error_line("one line\nthe last") == "the last"
    assert error_line("") == ""
    found = Application(
        NAME,
        "DEPLOY_FAILED",
        "ValueError: outer",
        {},
        {"Engine": Deployment("Engine", "X", 1, (), "ValueError: inner")},
    )
    assert application_error(found) == "ValueError: inner"
    assert application_error(Application(NAME, "UNHEALTHY")) == "UNHEALTHY"


def test_enumerations_of_ray_are_read_like_their_words():
    class Status:
        value = "RUNNING"

    found = parse_application({"applications": {NAME: {"status": Status(), "deployments": {}}}}, NAME)
    assert found is not None
    assert found.status == "RUNNING"
    assert parse_application({"applications": {}}, NAME) is None


def test_an_application_that_is_being_built_has_no_deployments_yet():
    found = parse_application({"applications": {NAME: {"status": "DEPLOYING", "message": "", "deployments": {}}}}, NAME)
    assert found == Application(NAME, "DEPLOYING")


@pytest.mark.parametrize(
    ("changes", "host", "url"),
    [
        ({}, "ray", "http://ray:8000"),
        ({"http_options": {"host": "127.0.0.1", "port": 8000}}, "ray", None),
        ({"http_options": {"host": "127.0.0.1", "port": 8000}}, "localhost", "http://localhost:8000"),
        ({"proxy_location": "Disabled"}, "ray", None),
        ({"proxies": {"n": {"status": "STARTING"}}}, "ray", None),
        ({"http_options": None}, "ray", None),
        ({"http_options": {"host": "::", "port": 1, "ssl_certfile": "/c"}}, "fd00::1", "https://[fd00::1]:1"),
    ],
)
def test_the_proxys_address_is_the_dashboards_host_and_serves_port(changes, host, url):
    shown = {"http_options": {"host": "0.0.0.0", "port": 8000}, "proxies": {"n": {"status": "HEALTHY"}}}
    assert proxy_url({"proxy_location": "HeadOnly", **shown, **changes}, host) == url


def test_doors_are_addresses_with_a_port_and_bounded():
    assert parse_listeners({"doors": ["http://a:1", "http://a:1", "grpcs://[::1]:2"]}) == (
        "http://a:1",
        "grpcs://[::1]:2",
    )
    for wrong in (None, [], {}, {"doors": "http://a:1"}, {"doors": {"a": 1}}):
        assert parse_listeners(wrong) == ()
    assert len(parse_listeners({"doors": [f"http://a:{port}" for port in range(1000)]})) == 64


def test_messages_are_plain_words_and_one_hierarchy():
    for kind in (Unreachable, AuthFailed, Incompatible, Refused, NameConflict, ServeBusy):
        assert issubclass(kind, ServeError)
        assert kind("x").reason[0].isupper()
    assert json.dumps(application())
