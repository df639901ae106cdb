"""Actions of ``octavo up`` by the operator's own plan, on a Serve in memory."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from octavo_api.resource.deployment import ServingDeployment
from octavo_cli.local_operator import LocalOperator, placement
from octavo_operator.serve.errors import Refused, ServeError, Unreachable

DEPLOYMENT = ServingDeployment.read({"metadata": {"name": "a"}, "spec": {"model": {"uri": "embedded://smollm2"}}})
FOREIGN = {"name": "theirs", "route_prefix": "/theirs", "import_path": "x:y"}
TRACEBACK = (
    "Traceback (most recent call last):\nray.exceptions.RayTaskError: x\n"
    "octavo_api.errors.NotEnoughMemory: weights need 4 GiB\nlower it"
)


class Serve:
    """Keeps each configuration, and moves only on demand."""

    def __init__(self) -> None:
        self.declared: dict[str, dict[str, Any]] = {}
        self.states: dict[str, str] = {}
        self.message = ""
        self.error: ServeError | None = None
        self.puts = 0

    async def version(self) -> str:
        return "2.60.0"

    async def details(self) -> Mapping[str, Any]:
        if isinstance(self.error, Unreachable):
            raise self.error
        return {
            "controller_info": {"node_id": "n"},
            "applications": {name: self._application(name, state) for name, state in self.states.items()},
        }

    async def put_config(self, config: Mapping[str, Any]) -> None:
        if self.error is not None:
            raise self.error
        self.puts += 1
        self.declared = {application["name"]: application for application in config["applications"]}
        self.states = dict.fromkeys(self.states, "DELETING") | dict.fromkeys(self.declared, "DEPLOYING")

    def become(self, state: str, message: str = "") -> None:
        self.states = dict.fromkeys(self.declared, state)
        self.message = message

    def finish_deleting(self) -> None:
        self.states = {name: state for name, state in self.states.items() if state != "DELETING"}

    def _application(self, name: str, state: str) -> dict[str, Any]:
        config = self.declared.get(name)
        replica = "RUNNING" if state == "RUNNING" else "STARTING"
        deployments = {
            item["name"]: {
                "status": "HEALTHY" if state == "RUNNING" else "UPDATING",
                "message": self.message,
                "target_num_replicas": 1,
                "replicas": [{"replica_id": item["name"], "state": replica}],
            }
            for item in (config or {}).get("deployments", ())
        }
        return {
            "name": name,
            "status": state,
            "message": "failed" if self.message else "",
            "source": "declarative",
            "deployed_app_config": config,
            "deployments": deployments,
        }


@pytest.fixture
def serve() -> Serve:
    return Serve()


@pytest.fixture
def operator(serve: Serve) -> Iterator[LocalOperator]:
    with LocalOperator(DEPLOYMENT, placement(DEPLOYMENT, None, 2.0), serve) as operator:
        yield operator


@pytest.fixture
def running(serve: Serve, operator: LocalOperator) -> LocalOperator:
    operator.round()
    serve.become("RUNNING")
    assert operator.round().ready
    return operator


def test_it_is_put_once_and_ready_when_everything_runs(serve: Serve, operator: LocalOperator) -> None:
    assert not operator.round().ready
    (application,) = serve.declared.values()
    assert (application["name"], application["args"]["owner"], application["args"]["bind"]) == (
        "a",
        "local",
        "loopback",
    )
    for _ in range(3):
        look = operator.round()
        assert (look.ready, look.hindrance, look.messages) == (False, "", ())
    serve.become("RUNNING")
    assert operator.round().ready
    assert serve.puts == 1


def test_what_somebody_else_changed_is_set_back_and_said(serve: Serve, running: LocalOperator) -> None:
    before = dict(serve.declared["a"])
    serve.declared["a"] = {**before, "route_prefix": "/other"}
    (said,) = running.round().messages
    assert "another client changed application" in said
    assert serve.declared["a"] == before


def test_what_was_left_out_is_put_again_beside_what_is_there_now(serve: Serve, running: LocalOperator) -> None:
    serve.declared, serve.states = {"theirs": FOREIGN}, {"theirs": "RUNNING"}
    (said,) = running.round().messages
    assert "another client removed application" in said
    assert set(serve.declared) == {"a", "theirs"}


def test_a_serve_that_lost_everything_gets_it_again(serve: Serve, running: LocalOperator) -> None:
    serve.declared, serve.states = {}, {}
    (said,) = running.round().messages
    assert "lost application a; the operator deployed it again" in said
    serve.become("RUNNING")
    assert running.round().ready


def test_a_serve_that_does_not_answer_is_said_once_and_left_alone(serve: Serve, running: LocalOperator) -> None:
    serve.error = Unreachable("its controller: is being restarted")
    assert running.round().messages == ("Ray Serve does not answer; its controller: is being restarted",)
    assert running.round().messages == ()
    serve.error = None
    assert running.round().ready
    assert serve.puts == 1


@pytest.mark.parametrize("state", ["DEPLOY_FAILED", "UNHEALTHY"])
def test_what_failed_says_why_in_all_its_lines(state: str, serve: Serve, operator: LocalOperator) -> None:
    operator.round()
    serve.become(state, TRACEBACK)
    assert operator.round().hindrance == "weights need 4 GiB\nlower it"


def test_a_configuration_that_serve_refuses_is_said(serve: Serve, operator: LocalOperator) -> None:
    serve.error = Refused("Serve rejected the configuration: no such field")
    assert operator.round().hindrance == "Serve rejected the configuration: no such field"


def test_an_application_of_that_name_that_is_not_ours_is_not_touched(serve: Serve, operator: LocalOperator) -> None:
    serve.declared, serve.states = {"a": {**FOREIGN, "name": "a"}}, {"a": "RUNNING"}
    look = operator.round()
    assert "of another owner" in look.hindrance
    assert serve.puts == 0


def test_suspend_removes_the_application_and_ends_when_serve_has_none(serve: Serve, running: LocalOperator) -> None:
    running.suspend()
    assert not running.round().stopped
    assert serve.declared == {}
    assert not running.round().stopped
    serve.finish_deleting()
    assert running.round().stopped
    assert serve.puts == 2
