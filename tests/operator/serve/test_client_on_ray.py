"""The contract that the fake dashboard is held to, on Ray itself."""

import asyncio
import copy
from dataclasses import replace

import pytest

from octavo_operator.decide.application import config_hash
from octavo_operator.model.desired import DesiredApplication, Mode, with_retry
from octavo_operator.model.observed import Reach
from octavo_operator.serve.details import parse_application
from octavo_testing import ray_host
from octavo_testing.operator.fakes.contract_serve import DEPLOYMENT, ServeContract, Target

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def host():
    with ray_host.running(cpus=2) as host:
        yield host


class TestRayServe(ServeContract):
    @pytest.fixture
    def target(self, host, serve_client):
        return Target(serve_client, host.dashboard_url, host.token, "octavo_testing.apps.words:build", seconds=60)


async def test_ray_asks_for_its_token(host, serve_client):
    for token in (None, "wrong"):
        seen = await serve_client.fetch(host.dashboard_url, token, "a")
        assert seen.reach is Reach.AUTH_FAILED


async def test_ray_says_in_a_way_that_we_read_what_cannot_be_imported(host, serve_client):
    target = Target(serve_client, host.dashboard_url, host.token, "octavo_absent.app:build", seconds=60)
    contract = ServeContract()
    await contract.put(target, contract.application(target, "absent"))

    async def failed():
        found = (await contract.read(target, "absent")).applications.get("absent")
        return found if found is not None and found.status == "DEPLOY_FAILED" else None

    found = await contract.until(target, "the application fails", failed)
    assert found.message.startswith("octavo_absent cannot be imported in this Ray; install")
    await contract.remove(target, "absent")
    await contract.gone(target, "absent")


@pytest.mark.parametrize("edited", [False, True], ids=["the first time", "after an edit"])
async def test_what_serve_has_given_up_is_begun_again_and_what_runs_is_kept(host, serve_client, tmp_path, edited):
    """Neither the very same configuration does it, nor, after an edit, other counts."""
    target = Target(serve_client, host.dashboard_url, host.token, "octavo_testing.apps.words:build", seconds=60)
    contract, needed = ServeContract(), tmp_path / "needed"
    options = {"num_cpus": 0, "runtime_env": {"env_vars": {"WORD_NEEDS": str(needed)}}}
    scaling = {"min_replicas": 1, "max_replicas": 1}
    document = contract.application(
        target, "given-up", ray_actor_options=options, autoscaling_config=scaling, health_check_timeout_s=10
    )
    del document["deployments"][0]["num_replicas"]
    wanted = DesiredApplication(Mode.EXTERNAL, document, host.dashboard_url)

    async def found():
        return (await contract.read(target, "given-up")).applications.get("given-up")

    async def failed():
        return (application := await found()) is not None and application.status == "DEPLOY_FAILED"

    async def again():
        """As once it has been given up, whatever it does now."""
        seen = await found()
        given_up = {name: replace(one, status="DEPLOY_FAILED") for name, one in seen.deployments.items()}
        put = with_retry(wanted, replace(seen, deployments=given_up)).config
        assert config_hash(put) == config_hash(seen.config)
        await contract.put(target, put)
        return (await contract.running(target, "given-up")).deployments[DEPLOYMENT].replicas

    if edited:
        before = copy.deepcopy(document)
        before["deployments"][0]["ray_actor_options"] = {"num_cpus": 0}
        await contract.put(target, before)
        await contract.running(target, "given-up")
    await contract.put(target, document)
    await contract.until(target, "Serve gives up", failed)
    assert {one.status for one in (await found()).deployments.values()} == {"DEPLOY_FAILED"}
    needed.touch()
    await contract.put(target, document)
    await asyncio.sleep(3)
    assert await failed()
    (first,) = await again()
    (same,) = await again()
    assert same.actor_id == first.actor_id
    await contract.remove(target, "given-up")
    await contract.gone(target, "given-up")


async def test_details_of_ray_are_read_with_their_log_files(host, serve_client):
    target = Target(serve_client, host.dashboard_url, host.token, "octavo_testing.apps.words:build", seconds=60)
    contract = ServeContract()
    await contract.put(target, contract.application(target, "logged"))
    await contract.running(target, "logged")
    found = parse_application(host.serve(), "logged")
    assert found is not None
    (replica,) = found.deployments["Word"].replicas
    assert replica.log
    assert replica.node_ip
    await contract.remove(target, "logged")
    await contract.gone(target, "logged")
