"""What the operator relies on in Ray's Jobs interface: one suite for the fake and for Ray itself.

Subclass it where the fixtures ``jobs`` and ``command`` are.
"""

import asyncio
import uuid
from collections.abc import Callable

import pytest

from octavo_operator.serve.jobs import Job, Jobs


class JobsContract:
    seconds = 30.0

    @pytest.fixture
    def name(self) -> str:
        return f"octavo-test-{uuid.uuid4().hex[:8]}"

    async def ended(self, jobs: Jobs, name: str) -> Job:
        for _ in range(int(self.seconds / 0.1)):
            job = await jobs.find(name)
            assert job is not None
            if job.ended:
                return job
            await asyncio.sleep(0.1)
        raise AssertionError(f"never: {name} ends")

    async def test_a_job_runs_once_and_is_forgotten(self, jobs: Jobs, command: Callable[[int, str], str], name: str):
        assert await jobs.find(name) is None
        assert await jobs.submit(name, command(0, "done"))
        assert not await jobs.submit(name, command(0, "done"))
        job = await self.ended(jobs, name)
        assert (job.status, job.exit_code) == ("SUCCEEDED", 0)
        assert await jobs.delete(name)
        assert await jobs.find(name) is None

    async def test_one_that_fails_tells_its_exit_code_and_what_it_said(
        self, jobs: Jobs, command: Callable[[int, str], str], name: str
    ):
        assert await jobs.submit(name, command(81, "octavo: missing this"))
        job = await self.ended(jobs, name)
        assert (job.status, job.exit_code) == ("FAILED", 81)
        assert "octavo: missing this" in job.message.splitlines()
        assert await jobs.ended(name[:-1]) == (name,)
        assert await jobs.ended("another") == ()
        assert await jobs.delete(name)
        assert await jobs.ended(name) == ()

    async def test_one_that_goes_on_is_not_deleted_before_it_is_stopped(
        self, jobs: Jobs, command: Callable[[int, str], str], name: str
    ):
        assert await jobs.submit(name, f"sleep 60; {command(0, 'done')}")
        assert not await jobs.delete(name)
        assert await jobs.ended(name) == ()
        job = await jobs.find(name)
        assert job is not None
        assert not job.ended
        while not job.ended:
            # One that has not started yet is not there to be told.
            await jobs.stop(name)
            await asyncio.sleep(0.2)
            job = await jobs.find(name)
            assert job is not None
        assert job.status == "STOPPED"
        assert await jobs.delete(name)
        assert await jobs.find(name) is None
