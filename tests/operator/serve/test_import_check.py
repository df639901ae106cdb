# ruff: noqa: ASYNC110
"""Check for Octavo in an external Ray before the operator deploys there, against the fake dashboard."""

import asyncio
import math
import shlex

import pytest

from octavo_api import __version__
from octavo_operator.model.observed import Reach
from octavo_operator.serve import import_check
from octavo_operator.serve.client import ServeClient
from octavo_operator.serve.import_check import PREFIX, ImportCheck
from octavo_operator.serve.jobs import RestJobs
from octavo_operator.serve.rest import Dashboard
from octavo_testing.operator.fakes.contract_jobs import JobsContract
from octavo_testing.operator.fakes.serve_http import RAY_VERSION, Answer, FakeServe

NAME = "prod.books"
JOBS = "/api/jobs/"
APPLICATION = {
    "name": NAME,
    "route_prefix": "/prod/books",
    "import_path": "octavo_serving.app:build",
    "args": {"owner": "prod/books"},
    "deployments": [{"name": "Engine", "num_replicas": 1}],
}


class Clock:
    now = 0.0


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def client(session, clock):
    asks = ImportCheck(lambda address, token: RestJobs(Dashboard(session, address, token)), now=lambda: clock.now)
    return ServeClient.over_http(session, required_version=RAY_VERSION, fresh_s=0, import_check=asks)


@pytest.fixture
def read(client, ray_serve):
    return lambda **options: client.fetch(ray_serve.address, None, NAME, **{"check_import": True, **options})


def job_calls(ray: FakeServe) -> list[tuple[str, str]]:
    return [call for call in ray.calls if call[1].startswith(JOBS)]


class TestFakeJobs(JobsContract):
    @pytest.fixture
    def jobs(self, session, ray_serve):
        return RestJobs(Dashboard(session, ray_serve.address, None))

    @pytest.fixture
    def command(self, ray_serve):
        def command(code: int, said: str) -> str:
            ray_serve.ray.jobs.answer = code, said
            return f"echo {said}; exit {code}"

        return command


async def test_a_ray_with_octavo_is_asked_once_and_keeps_nothing_of_it(ray_serve, client, read, clock):
    seen = await asyncio.gather(
        *(client.fetch(ray_serve.address, None, f"prod.d{number}", check_import=True) for number in range(20))
    )
    assert {one.reach for one in seen} == {Reach.OK}
    (name,) = ray_serve.ray.jobs.submitted
    assert name.startswith(PREFIX)
    assert ray_serve.ray.jobs.known == {}
    clock.now = 1e6
    assert (await read()).reach is Reach.OK
    assert ray_serve.ray.jobs.submitted == [name]


async def test_a_job_that_ray_writes_down_again_is_deleted_again(ray_serve, read, monkeypatch):
    """It does so with one that is deleted before Ray's watch over it has seen it end."""
    ray_serve.ray.jobs.watched_s = math.inf
    monkeypatch.setattr(import_check, "DELETION_SETTLE_S", 1.0)
    await read()
    assert ray_serve.ray.jobs.known == {}
    assert len([call for call in job_calls(ray_serve) if call[0] == "DELETE"]) == 2


async def test_the_job_takes_no_cpu_and_says_what_it_asks_for(ray_serve, read):
    bodies = []
    submit = ray_serve.ray.jobs.submit
    ray_serve.ray.jobs.submit = lambda name, entrypoint: bodies.append(entrypoint) or submit(name, entrypoint)
    await read()
    program, flag, script, *arguments = shlex.split(bodies[0])
    assert (program, flag) == ("python3", "-c")
    assert arguments == [RAY_VERSION, ".".join(__version__.split(".")[:2]), "octavo_serving.app"]
    compile(script, "job", "exec")


async def test_a_ray_without_octavo_is_incompatible_until_it_is_installed(ray_serve, read, clock):
    ray_serve.ray.jobs.install(None)
    for _ in range(3):
        seen = await read()
        assert seen.reach is Reach.INCOMPATIBLE
        assert seen.message == (
            f"octavo_serving cannot be imported in this Ray; install octavo[serving]=={__version__} in the Python "
            "environment of Ray's head and workers"
        )
        assert seen.ray_version == RAY_VERSION
    assert len(ray_serve.ray.jobs.submitted) == 1
    ray_serve.ray.jobs.install()
    assert (await read()).reach is Reach.INCOMPATIBLE
    clock.now += import_check.RECHECK_S
    assert (await read()).reach is Reach.OK
    assert ray_serve.ray.jobs.known == {}


async def test_a_ray_that_was_away_is_asked_anew(ray_serve, read):
    ray_serve.ray.jobs.install(None)
    assert (await read()).reach is Reach.INCOMPATIBLE
    ray_serve.answers.append(Answer(503))
    assert (await read()).reach is Reach.UNREACHABLE
    ray_serve.ray.jobs.install()
    assert (await read()).reach is Reach.OK
    ray_serve.answers.append(Answer(503))
    assert (await read()).reach is Reach.UNREACHABLE
    ray_serve.ray.jobs.install(None)
    assert (await read()).reach is Reach.INCOMPATIBLE


async def test_a_refused_token_does_not_forget_what_is_known(session, client, monkeypatch):
    monkeypatch.setattr(import_check, "DELETION_SETTLE_S", 0.05)
    async with FakeServe(token="right") as ray:
        for token, reach in (("right", Reach.OK), ("wrong", Reach.AUTH_FAILED), ("right", Reach.OK)):
            assert (await client.fetch(ray.address, token, NAME, check_import=True)).reach is reach
        assert len(ray.ray.jobs.submitted) == 1
        assert {one.get("Authorization") for one in ray.headers} == {"Bearer right", "Bearer wrong"}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((81, "octavo: missing starlette"), "starlette cannot be imported"),
        ((81, "octavo: missing old\nmore\noctavo: missing octavo_api.blocks"), "octavo_api.blocks cannot be imported"),
        ((82, "octavo: version 0.9.1"), f"this Ray has Octavo 0.9.1, and this operator deploys {__version__}"),
    ],
)
async def test_what_is_missing_is_named(ray_serve, read, answer, words):
    ray_serve.ray.jobs.answer = answer
    seen = await read()
    assert seen.reach is Reach.INCOMPATIBLE
    assert words in seen.message
    assert f"octavo[serving]=={__version__}" in seen.message


@pytest.mark.parametrize(
    "answer",
    [
        (1, "ImportError: secret-body"),
        (83, "octavo: missing ray"),
        (127, "sh: python3: not found\noctavo: missing octavo_serving"),
        (81, "octavo: missing <script>secret-body"),
        (82, "octavo: version secret-body"),
    ],
)
async def test_a_job_that_ends_otherwise_is_no_hindrance(ray_serve, read, clock, answer):
    ray_serve.ray.jobs.answer = answer
    for _ in range(2):
        seen = await read()
        assert seen.reach is Reach.OK
        assert seen.message == ""
    assert len(ray_serve.ray.jobs.submitted) == 1
    assert ray_serve.ray.jobs.known == {}
    clock.now += import_check.RECHECK_S
    ray_serve.ray.jobs.install(None)
    assert (await read()).reach is Reach.INCOMPATIBLE


@pytest.mark.parametrize("status", [0, 302, 401, 403, 404, 405, 500, 501, 503])
async def test_a_closed_jobs_interface_is_no_hindrance(ray_serve, read, status):
    ray_serve.answers.append(Answer(status, "secret-body", times=99, path=JOBS, headers={"Location": "/elsewhere"}))
    assert (await read()).reach is Reach.OK
    assert len(job_calls(ray_serve)) < 10
    asked = len(ray_serve.calls)
    assert (await read()).reach is Reach.OK
    assert len(ray_serve.calls) == asked + 2
    assert not [call for call in ray_serve.calls if call[1] == "/elsewhere"]


@pytest.mark.parametrize("body", ["<html>", "[]", "{}", '{"status": 7, "driver_exit_code": "0", "message": {}}'])
async def test_an_answer_that_is_no_jobs_is_no_hindrance(ray_serve, read, monkeypatch, body):
    monkeypatch.setattr(import_check, "ANSWER_TIMEOUT_S", 0.2)
    monkeypatch.setattr(import_check, "CLEANUP_TIMEOUT_S", 0.1)
    ray_serve.answers.append(Answer(200, body, times=9999, path=JOBS))
    assert (await read()).reach is Reach.OK


async def test_an_endless_answer_about_a_job_is_not_read_to_its_end(ray_serve, read, monkeypatch):
    monkeypatch.setattr("octavo_operator.serve.jobs.MAX_BYTES", 1000)
    ray_serve.answers.append(Answer(200, "x" * 2000, times=9, path=JOBS))
    assert (await read()).reach is Reach.OK


async def test_a_jobs_interface_that_hangs_is_no_hindrance(ray_serve, read, monkeypatch):
    monkeypatch.setattr(import_check, "ANSWER_TIMEOUT_S", 0.1)
    monkeypatch.setattr(import_check, "CLEANUP_TIMEOUT_S", 0.1)
    ray_serve.answers.append(Answer(200, "{}", delay=30, times=99, path=JOBS))
    assert (await read()).reach is Reach.OK
    assert import_check.ANSWER_TIMEOUT_S + import_check.CLEANUP_TIMEOUT_S < 30


async def test_a_job_that_does_not_end_is_stopped_and_deleted(ray_serve, read, monkeypatch):
    monkeypatch.setattr(import_check, "ANSWER_TIMEOUT_S", 2.0)
    jobs = ray_serve.ray.jobs
    submit = jobs.submit
    jobs.submit = lambda name, entrypoint: submit(name, entrypoint) and _never_ends(jobs.known[name])
    assert (await read()).reach is Reach.OK
    assert ("POST", f"{JOBS}{jobs.submitted[0]}/stop") in ray_serve.calls
    assert jobs.known == {}


async def test_a_job_that_could_not_be_deleted_is_when_its_ray_is_next_looked_at(ray_serve, client, read, monkeypatch):
    monkeypatch.setattr(import_check, "CLEANUP_TIMEOUT_S", 0.1)
    ray_serve.answers.append(Answer(500, times=999, method="DELETE", path=JOBS))
    assert (await read()).reach is Reach.OK
    ray_serve.answers.clear()
    monkeypatch.setattr(import_check, "CLEANUP_TIMEOUT_S", 10.0)
    assert list(ray_serve.ray.jobs.known) == ray_serve.ray.jobs.submitted
    await client.deploy(ray_serve.address, None, APPLICATION)
    while (await read()).applications[NAME].status != "RUNNING":
        await asyncio.sleep(0.01)
    assert ray_serve.ray.jobs.known == {}
    calls = len(job_calls(ray_serve))
    await read()
    assert len(job_calls(ray_serve)) == calls


async def test_jobs_of_a_killed_operator_are_deleted_and_do_not_count(ray_serve, read):
    jobs = ray_serve.ray.jobs
    jobs.install(None)
    for name in (f"{PREFIX}1", f"{PREFIX}2", "somebody-elses"):
        jobs.submit(name, "python3")
        jobs.known[name].ends_at = 0.0 if name != f"{PREFIX}2" else float("inf")
    assert jobs.find(f"{PREFIX}1").status == "FAILED"
    jobs.install()
    assert (await read()).reach is Reach.OK
    # One that goes on may be what another operator waits for.
    assert list(jobs.known) == [f"{PREFIX}2", "somebody-elses"]


async def test_operators_that_ask_at_once_leave_nothing_behind(ray_serve, session, client):
    ray_serve.ray.jobs.install(None)
    others = [
        ServeClient.over_http(session, required_version=RAY_VERSION, fresh_s=0, import_check=ImportCheck(connect))
        for connect in [lambda address, token: RestJobs(Dashboard(session, address, token))] * 5
    ]
    seen = await asyncio.gather(
        *(one.fetch(ray_serve.address, None, NAME, check_import=True) for one in (client, *others))
    )
    # Who finds its job deleted by another has learnt nothing.
    assert {one.reach for one in seen} <= {Reach.INCOMPATIBLE, Reach.OK}
    assert Reach.INCOMPATIBLE in {one.reach for one in seen}
    assert ray_serve.ray.jobs.known == {}


async def test_no_check_without_a_deploy_or_with_the_application_present(ray_serve, client, read):
    assert (await read(check_import=False, with_listeners=True)).reach is Reach.OK
    await client.deploy(ray_serve.address, None, APPLICATION)
    while (await read()).applications[NAME].status != "RUNNING":
        await asyncio.sleep(0.01)
    assert job_calls(ray_serve) == []
    # That it runs has shown it: what Serve loses is put back at once.
    ray_serve.ray.lose_everything()
    assert (await read()).applications == {}
    assert job_calls(ray_serve) == []


async def test_one_that_runs_there_leaves_the_job_that_another_waits_for_alone(ray_serve, client, read):
    await client.deploy(ray_serve.address, None, APPLICATION)
    while (await read(check_import=False)).applications[NAME].status != "RUNNING":
        await asyncio.sleep(0.01)
    jobs = ray_serve.ray.jobs
    jobs.install(None)
    submit = jobs.submit
    jobs.submit = lambda name, entrypoint: submit(name, entrypoint) and _never_ends(jobs.known[name])
    other = asyncio.create_task(client.fetch(ray_serve.address, None, "prod.other", check_import=True))
    while not jobs.known:
        await asyncio.sleep(0.001)
    await read()
    jobs.known[jobs.submitted[0]].ends_at = 0.0
    assert (await other).reach is Reach.INCOMPATIBLE
    assert not [path for _, path in ray_serve.calls if path.endswith("/stop")]


async def test_nothing_is_asked_of_another_ray(ray_serve, read):
    ray_serve.version = "2.44.1"
    assert (await read()).reach is Reach.INCOMPATIBLE
    assert job_calls(ray_serve) == []


def _never_ends(job) -> bool:
    job.ends_at = float("inf")
    return True
