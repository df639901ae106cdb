"""Ray's Jobs interface, limited to one command that is run and forgotten."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from octavo_operator.serve.errors import Unreachable
from octavo_operator.serve.rest import Dashboard

JOBS_PATH = "/api/jobs/"
MAX_BYTES = 2**23
_ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


@dataclass(frozen=True, slots=True)
class Job:
    """A job in Ray. ``status`` is Ray's word. ``message`` is foreign text: the last lines of a command that failed."""

    status: str
    exit_code: int | None = None
    message: str = ""

    @property
    def ended(self) -> bool:
        return self.status in _ENDED


class Jobs(Protocol):
    """The jobs of one Ray. Calls raise a ``ServeError`` if Ray gives no usable answer."""

    async def find(self, submission_id: str) -> Job | None:
        """Return the job, None if Ray has none of this id."""

    async def ended(self, prefix: str) -> tuple[str, ...]:
        """Return the ids that begin with ``prefix``, of jobs that have ended."""

    async def submit(self, submission_id: str, entrypoint: str) -> bool:
        """Run a shell command on the head; return False if Ray does not take it.

        Use no id twice: Ray's unfinished work on a forgotten job hits the next job of that id.
        """

    async def stop(self, submission_id: str) -> None:
        """Ask a job to end."""

    async def delete(self, submission_id: str) -> bool:
        """Make Ray forget a job that has ended; return False if it does not, perhaps because the job has not ended."""


class RestJobs:
    """Jobs through the dashboard."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard

    async def find(self, submission_id: str) -> Job | None:
        status, body = await self._call("GET", submission_id)
        if status == 404:
            return None
        if status != 200:
            raise Unreachable(f"{self._dashboard.address}: {status}: Ray does not list its jobs")
        return _job(self._dashboard.parse_object(body))

    async def ended(self, prefix: str) -> tuple[str, ...]:
        status, body = await self._call("GET", "")
        try:
            listed = json.loads(body) if status == 200 else None
        except ValueError:
            listed = None
        if not isinstance(listed, list):
            raise Unreachable(f"{self._dashboard.address}: {status}: Ray does not list its jobs")
        found = ((job.get("submission_id"), _job(job)) for job in listed if isinstance(job, dict))
        return tuple(name for name, job in found if isinstance(name, str) and name.startswith(prefix) and job.ended)

    async def submit(self, submission_id: str, entrypoint: str) -> bool:
        # It asks for no CPU, so it runs even if every CPU is taken, or the head offers none.
        job = {"submission_id": submission_id, "entrypoint": entrypoint, "entrypoint_num_cpus": 0}
        status, _ = await self._call("POST", "", job)
        return status == 200

    async def stop(self, submission_id: str) -> None:
        await self._call("POST", f"{submission_id}/stop")

    async def delete(self, submission_id: str) -> bool:
        status, _ = await self._call("DELETE", submission_id)
        return status in (200, 404)

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        return await self._dashboard.call(method, JOBS_PATH + path, body, max_bytes=MAX_BYTES)


def _job(answer: Mapping[str, Any]) -> Job:
    status, code, message = answer.get("status"), answer.get("driver_exit_code"), answer.get("message")
    return Job(
        status=status if isinstance(status, str) else "",
        exit_code=code if isinstance(code, int) else None,
        message=message if isinstance(message, str) else "",
    )
