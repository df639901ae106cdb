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
ASK_S, END_S, POLL_S, GONE_S = 20.0, 10.0, 0.3, 3.5
"""Maximum seconds until the answer, and until the job is gone if no answer came. Then the seconds between polls, and
after a deletion, until Ray has forgotten the job."""
AGAIN_S = 300.0
"""Seconds that a negative answer counts, or a check without any answer."""

_MISSING, _OTHER_VERSION, _NOT_RAYS = 81, 82, 83
_SCRIPT = f"""\
# Octavo's operator asks whether Octavo can be imported in this Ray.
import importlib, sys
ray_version, series, module = sys.argv[1:]
try:
    import ray
except ImportError:
    sys.exit({_NOT_RAYS})
if ray.__version__ != ray_version:
    sys.exit({_NOT_RAYS})
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
_SAID_MISSING = re.compile(r"^octavo: missing ([A-Za-z_][A-Za-z0-9_.]{0,99})$", re.MULTILINE)
_SAID_VERSION = re.compile(r"^octavo: version ([0-9][0-9A-Za-z.+-]{0,32})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Known:
    hindrance: str | None
    until: float


class Importable:
    """Memory of each Ray's answer, so that one job answers for every deployment there.

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
        self._known: dict[str, _Known] = {}
        self._left: dict[str, str] = {}
        """Our job that may still be there, by address."""
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def hindrance(self, address: str, token: str | None, ray_version: str) -> str | None:
        """Return the reason that Octavo cannot be imported there, with a remedy; None if none is known.

        The answer comes within half a minute, and at once if it is remembered. The call raises nothing.
        """
        # Waiting callers share the answer.
        async with self._lock(address):
            known = self._known.get(address)
            if known is None or self._now() >= known.until:
                known = self._known[address] = await self._ask(address, self._connect(address, token), ray_version)
            return known.hindrance

    async def seen_running(self, address: str, token: str | None) -> None:
        """Record that Octavo can be imported there, because an application of ours runs."""
        self._known[address] = _Known(None, math.inf)
        if (left := self._left.get(address)) is not None:
            await self._end(address, self._connect(address, token), left)

    def forget(self, address: str) -> None:
        """Forget the answer: another Ray may be at the address when it answers again."""
        self._known.pop(address, None)

    async def _ask(self, address: str, jobs: Jobs, ray_version: str) -> _Known:
        _log.info("ask whether Octavo can be imported at %s", address)
        name = f"{PREFIX}{uuid.uuid4().hex[:12]}"
        try:
            async with asyncio.timeout(ASK_S):
                job = await self._run(jobs, name, ray_version)
        except (TimeoutError, ServeError) as error:
            await self._end(address, jobs, name)
            return self._unknown(address, str(error) or "no answer in time")
        if job is None:
            return self._unknown(address, "Ray takes no jobs")
        await self._end(address, jobs, name)
        if job.status == "SUCCEEDED":
            return _Known(None, math.inf)
        if (said := self._said(job)) is None:
            return self._unknown(address, f"the job ended otherwise: {job.status}, {job.exit_code}")
        return _Known(said, self._now() + AGAIN_S)

    async def _run(self, jobs: Jobs, name: str, ray_version: str) -> Job | None:
        """Return the job when it has ended, None if Ray takes no jobs."""
        for left in await jobs.ended(PREFIX):
            await jobs.delete(left)
        series = ".".join(self._version.split(".")[:2])
        entrypoint = shlex.join(["python3", "-c", _SCRIPT, ray_version, series, self._module])
        if not await jobs.submit(name, entrypoint):
            return None
        while (job := await jobs.find(name)) is not None:
            if job.ended:
                return job
            await asyncio.sleep(POLL_S)
        # Another operator deleted it as one that was left behind, and Ray may write it down again.
        await asyncio.sleep(GONE_S)
        raise Unreachable("Ray lost the job")

    async def _end(self, address: str, jobs: Jobs, name: str) -> None:
        """Make Ray forget the job. If it does not end, retry at a later look at its Ray."""
        try:
            async with asyncio.timeout(END_S):
                while (job := await jobs.find(name)) is not None:
                    await (jobs.delete if job.ended else jobs.stop)(name)
                    # Ray records a job as failed if it has not seen its end yet. It looks every second, asks a job at
                    # every other look, and may take the answer at the next.
                    await asyncio.sleep(GONE_S if job.ended else POLL_S)
        except (TimeoutError, ServeError):
            self._left[address] = name
        else:
            self._left.pop(address, None)

    def _said(self, job: Job) -> str | None:
        """Return the job's finding in our own words, None if it has none."""
        install = f"install octavo[serving]=={self._version} in the Python environment of Ray's head and workers"
        if job.exit_code == _MISSING and (missing := _SAID_MISSING.findall(job.message)):
            return f"{missing[-1]} cannot be imported in this Ray; {install}"
        if job.exit_code == _OTHER_VERSION and (found := _SAID_VERSION.findall(job.message)):
            return f"this Ray has Octavo {found[-1]}, and this operator deploys {self._version}; {install}"
        return None

    def _unknown(self, address: str, why: str) -> _Known:
        _log.info("whether Octavo can be imported at %s is not known: %s", address, why)
        return _Known(None, self._now() + AGAIN_S)

    def _lock(self, address: str) -> asyncio.Lock:
        if (lock := self._locks.get(address)) is None:
            lock = self._locks[address] = asyncio.Lock()
        return lock
