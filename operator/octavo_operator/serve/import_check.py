"""Check that an external Ray has this version of Octavo, before the operator puts anything there.

The check is a job that imports the application and ends.
"""

import asyncio
import logging
import math
import re
import shlex
import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from octavo_api import __version__
from octavo_operator.serve.errors import ServeError, Unreachable
from octavo_operator.serve.jobs import Job, Jobs

_log = logging.getLogger(__name__)

MODULE = "octavo_serving.app"
"""Module of the application. Its import loads no torch, and starts nothing."""
PREFIX = "octavo-operator-import-check-"
"""Prefix of every such job's id. It identifies the jobs that a killed operator left behind."""
ANSWER_TIMEOUT_S = 20.0
"""Maximum seconds of a check."""
CLEANUP_TIMEOUT_S = 10.0
"""Maximum seconds for the deletion of a job that gave no answer."""
POLL_S = 0.3
DELETION_SETTLE_S = 3.5
"""Seconds after a deletion until Ray has forgotten the job."""
RECHECK_S = 300.0
"""Seconds until the next check after a negative answer, or after no answer."""

_MISSING, _OTHER_VERSION, _OTHER_PYTHON = 81, 82, 83
_SCRIPT = f"""\
# Octavo's operator checks if Octavo can be imported in this Ray.
import importlib, sys
ray_version, series, module = sys.argv[1:]
try:
    import ray
except ImportError:
    sys.exit({_OTHER_PYTHON})
if ray.__version__ != ray_version:
    sys.exit({_OTHER_PYTHON})
try:
    from octavo_api import __version__ as version
    if version.split(".")[:2] == series.split("."):
        importlib.import_module(module)
        sys.exit(0)
except ModuleNotFoundError as error:
    print("octavo: missing", error.name)
    sys.exit({_MISSING})
print("octavo: version", version)
sys.exit({_OTHER_VERSION})
"""
_MISSING_LINE = re.compile(r"^octavo: missing ([A-Za-z_][A-Za-z0-9_.]{0,99})$", re.MULTILINE)
_VERSION_LINE = re.compile(r"^octavo: version ([0-9][0-9A-Za-z.+-]{0,32})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Answer:
    problem: str | None
    until: float
    """Event loop's time until which the answer counts."""


class ImportCheck:
    """Checks by job if a Ray can import Octavo. One answer counts for every deployment on that Ray.

    Ray's Jobs interface may be closed, late or answer otherwise. Then the answer is unknown, which is no hindrance:
    Serve detects a missing Octavo when it builds the application.
    """

    def __init__(
        self,
        connect: Callable[[str, str | None], Jobs],
        *,
        module: str = MODULE,
        version: str = __version__,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._connect = connect
        self._module = module
        self._version = version
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self._answers: dict[str, _Answer] = {}
        self._leftover: dict[str, str] = {}
        """Job of ours that may still exist, by address."""
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def import_problem(self, address: str, token: str | None, ray_version: str) -> str | None:
        """Return the reason that Octavo cannot be imported there, with a remedy; None if none is known.

        The answer comes within half a minute, and at once if it is remembered. The call raises nothing.
        """
        # Waiting callers share the answer.
        async with self._lock(address):
            answer = self._answers.get(address)
            if answer is None or self._now() >= answer.until:
                answer = self._answers[address] = await self._run_check(
                    address, self._connect(address, token), ray_version
                )
            return answer.problem

    async def record_running(self, address: str, token: str | None) -> None:
        """Record that Octavo can be imported there, because an application of ours runs."""
        self._answers[address] = _Answer(None, math.inf)
        if (leftover := self._leftover.get(address)) is not None:
            await self._clean_up(address, self._connect(address, token), leftover)

    def forget(self, address: str) -> None:
        """Forget the answer: another Ray may be at the address when it answers again."""
        self._answers.pop(address, None)

    async def _run_check(self, address: str, jobs: Jobs, ray_version: str) -> _Answer:
        _log.info("checking if Octavo can be imported at %s", address)
        name = f"{PREFIX}{uuid.uuid4().hex[:12]}"
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                job = await self._run(jobs, name, ray_version)
        except (TimeoutError, ServeError) as error:
            await self._clean_up(address, jobs, name)
            return self._unknown(address, str(error) or "no answer in time")
        if job is None:
            return self._unknown(address, "Ray accepts no jobs")
        await self._clean_up(address, jobs, name)
        if job.status == "SUCCEEDED":
            return _Answer(None, math.inf)
        if (finding := self._finding(job)) is None:
            return self._unknown(address, f"the job ended as {job.status} with exit code {job.exit_code}")
        return _Answer(finding, self._now() + RECHECK_S)

    async def _run(self, jobs: Jobs, name: str, ray_version: str) -> Job | None:
        """Return the job when it has ended, None if Ray takes no jobs."""
        for leftover in await jobs.ended(PREFIX):
            await jobs.delete(leftover)
        series = ".".join(self._version.split(".")[:2])
        entrypoint = shlex.join(["python3", "-c", _SCRIPT, ray_version, series, self._module])
        if not await jobs.submit(name, entrypoint):
            return None
        while (job := await jobs.find(name)) is not None:
            if job.ended:
                return job
            await asyncio.sleep(POLL_S)
        # Another operator deleted it as one that was left behind, and Ray may write it down again.
        await asyncio.sleep(DELETION_SETTLE_S)
        raise Unreachable("Ray lost the job")

    async def _clean_up(self, address: str, jobs: Jobs, name: str) -> None:
        """Make Ray forget the job. If it does not end, retry at a later look at its Ray."""
        try:
            async with asyncio.timeout(CLEANUP_TIMEOUT_S):
                while (job := await jobs.find(name)) is not None:
                    await (jobs.delete if job.ended else jobs.stop)(name)
                    # Ray may record the deleted job again, as failed: it polls every second, queries a job at every
                    # second poll, and may use the answer at the next one.
                    await asyncio.sleep(DELETION_SETTLE_S if job.ended else POLL_S)
        except (TimeoutError, ServeError):
            self._leftover[address] = name
        else:
            self._leftover.pop(address, None)

    def _finding(self, job: Job) -> str | None:
        """Return the job's finding in our own words, None if it has none."""
        install = f"install octavo[serving]=={self._version} in the Python environment of Ray's head and workers"
        if job.exit_code == _MISSING and (missing := _MISSING_LINE.findall(job.message)):
            return f"{missing[-1]} cannot be imported in this Ray; {install}"
        if job.exit_code == _OTHER_VERSION and (found := _VERSION_LINE.findall(job.message)):
            return f"this Ray has Octavo {found[-1]}, and this operator deploys {self._version}; {install}"
        return None

    def _unknown(self, address: str, reason: str) -> _Answer:
        _log.info("cannot check if Octavo can be imported at %s: %s", address, reason)
        return _Answer(None, self._now() + RECHECK_S)

    def _lock(self, address: str) -> asyncio.Lock:
        if (lock := self._locks.get(address)) is None:
            lock = self._locks[address] = asyncio.Lock()
        return lock
