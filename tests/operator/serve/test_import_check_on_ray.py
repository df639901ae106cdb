"""The contract that the fake's jobs are held to, on Ray itself, and what a job there finds out."""

import json
import shlex

import pytest

from octavo_api import __version__
from octavo_operator.serve.import_check import PREFIX, ImportCheck
from octavo_operator.serve.jobs import RestJobs
from octavo_operator.serve.rest import Dashboard
from octavo_testing import ray_host
from octavo_testing.operator.fakes.contract_jobs import JobsContract
from octavo_testing.operator.fakes.serve_http import RAY_VERSION

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def host():
    with ray_host.running(cpus=1) as host:
        yield host


@pytest.fixture
def jobs(session, host):
    return RestJobs(Dashboard(session, host.dashboard_url, host.token))


@pytest.fixture
async def ray_version(session, host):
    status, body = await Dashboard(session, host.dashboard_url, host.token).call("GET", "/api/version")
    assert status == 200
    return json.loads(body)["ray_version"]


async def submitted(session, host) -> list[str]:
    _, body = await Dashboard(session, host.dashboard_url, host.token).call("GET", "/api/jobs/")
    return [job["submission_id"] for job in json.loads(body) if str(job["submission_id"]).startswith(PREFIX)]


class TestRayJobs(JobsContract):
    @pytest.fixture
    def command(self):
        return lambda code, said: f"echo {shlex.quote(said)}; exit {code}"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, None),
        ({"module": "octavo_absent.app"}, "octavo_absent cannot be imported in this Ray; install octavo[serving]=="),
        ({"version": "0.9.3"}, f"this Ray has Octavo {__version__}, and this operator deploys 0.9.3; install octavo"),
    ],
)
async def test_ray_tells_whether_octavo_can_be_imported(session, host, jobs, ray_version, options, said):
    assert ray_version.startswith(".".join(RAY_VERSION.split(".")[:2]))
    asks = ImportCheck(lambda address, token: jobs, **options)
    found = await asks.import_problem(host.dashboard_url, host.token, ray_version)
    assert (found is None) == (said is None)
    assert (found or "").startswith(said or "")
    assert asks._answers[host.dashboard_url].until == float("inf") or said
    assert await submitted(session, host) == []


async def test_a_python_that_is_not_rays_own_says_nothing(session, host, jobs, caplog):
    caplog.set_level("INFO")
    asks = ImportCheck(lambda address, token: jobs, module="octavo_absent.app")
    assert await asks.import_problem(host.dashboard_url, host.token, "2.60.99") is None
    assert "the job ended as FAILED with exit code 83" in caplog.text
    assert await submitted(session, host) == []


async def test_without_the_token_nothing_is_learnt(session, host, ray_version):
    asks = ImportCheck(lambda address, token: RestJobs(Dashboard(session, address, token)))
    assert await asks.import_problem(host.dashboard_url, "wrong", ray_version) is None
    assert await submitted(session, host) == []
