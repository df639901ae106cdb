"""The operator's plan against a real Ray in this process: what Serve says of itself is read as it is meant."""

from collections.abc import Callable, Iterator
from copy import deepcopy

import pytest

from octavo_api.resource.deployment import ServingDeployment
from octavo_api.resource.serve_config import application
from octavo_cli.local_operator import LocalOperator, Look, placement
from octavo_cli.local_serve import InProcess
from octavo_operator.serve.errors import Refused
from octavo_serving.local.local_ray import LocalRay, RunFolder
from octavo_testing.waiting import eventually

pytestmark = [pytest.mark.ray, pytest.mark.model, pytest.mark.timeout(290)]


@pytest.fixture(scope="module")
def controller() -> Iterator[object]:
    folder = RunFolder.create()
    try:
        with LocalRay(folder, num_cpus=2, environment={"RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT": "1"}):
            from octavo_serving.ray_adapter import Controller

            yield Controller.start(proxy_location="Disabled")
    finally:
        folder.remove()


def until(operator: LocalOperator, done: Callable[[Look], object]) -> Look:
    """Run rounds until one shows it."""

    def look() -> Look | None:
        found = operator.round()
        assert not found.hindrance, found.hindrance
        return found if done(found) else None

    found = eventually("a round that shows it", look, timeout_s=120, every_s=0.1)
    assert found is not None
    return found


async def test_what_serve_refuses_is_refused_and_not_unreachable(controller) -> None:
    with pytest.raises(Refused, match="Serve rejected the configuration"):
        await InProcess(controller).put_config({"applications": [{"name": "a", "deployments": 7}]})


def test_what_others_do_to_the_application_is_undone_until_it_is_suspended(
    controller, free_ports: tuple[int, int]
) -> None:
    http, grpc = free_ports
    spec = {
        "model": {"uri": "embedded://smollm2"},
        "engine": {"kvCacheMemoryBytes": "64Mi"},
        "endpoint": {"http": {"port": http}, "grpc": {"port": grpc}},
    }
    deployment = ServingDeployment.read({"metadata": {"name": "mine"}, "spec": spec})
    where = placement(deployment, None, 2.0)
    wanted = application(deployment, where)
    with LocalOperator(deployment, where, InProcess(controller)) as operator:
        until(operator, lambda look: look.ready)
        for _ in range(3):
            assert operator.round().events == ()

        changed = deepcopy(wanted)
        changed["deployments"][1]["user_config"]["served_name"] = "theirs"
        controller.apply([changed])
        look = until(operator, lambda look: look.messages)
        assert look.messages == ("another client changed application mine; the operator restored it",)
        until(operator, lambda look: look.ready)

        controller.apply([])
        look = until(operator, lambda look: look.messages)
        assert look.messages == ("Ray Serve had lost application mine; the operator deployed it again",)
        until(operator, lambda look: look.ready)

        operator.suspend()
        until(operator, lambda look: look.stopped)
        assert controller.details()["applications"] == {}
        assert operator.round().stopped
