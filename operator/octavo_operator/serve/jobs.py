"""Ray's Jobs interface, as far as one command that is run and forgotten needs it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from octavo_operator.serve.errors import Unreachable
from octavo_operator.serve.rest import Dashboard

JOBS_PATH = "/api/jobs/"
MOST_BYTES = 2**23
_ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


@dataclass(frozen=True, slots=True)
class Job:
    """``status`` is Ray's word. ``message`` is a foreign text: of a command that failed it has the last lines."""

    status: str
    exit_code: int | None = None
    message: str = ""

    @property
    def ended(self) -> bool:
        return self.status in _ENDED


class Jobs(Protocol):
    """The jobs of one Ray. Calls raise a ``ServeError`` where Ray gives no answer that is of use."""

    async def find(self, submission_id: str) -> Job | None:
        """Returns None where Ray has none of this id."""

    async def ended(self, prefix: str) -> tuple[str, ...]:
        """Returns the ids that begin so, of jobs that have ended."""

    async def submit(self, submission_id: str, entrypoint: str) -> bool:
        """Runs a shell's command on the head; False where Ray does not take it. No id may be used twice: what Ray still
        does about one that it has forgotten goes against the next of that id."""

    async def stop(self, submission_id: str) -> None:
        """Asks a job to end."""

    async def delete(self, submission_id: str) -> bool:
        """Makes Ray forget a job that has ended; False where it does not, as it has not ended perhaps."""


class RestJobs:
    """Through the dashboard."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard

    async def find(self, submission_id: str) -> Job | None:
        status, body = await self._call("GET", submission_id)
        if status == 404:
            return None
        if status != 200:
            raise Unreachable(f"{self._dashboard.address}: {status}: Ray's jobs are not to be seen")
        return _job(self._dashboard.read(body))

    async def ended(self, prefix: str) -> tuple[str, ...]:
        status, body = await self._call("GET", "")
        try:
            listed = json.loads(body) if status == 200 else None
        except ValueError:
            listed = None
        if not isinstance(listed, list):
            raise Unreachable(f"{self._dashboard.address}: {status}: Ray's jobs are not to be seen")
        found = ((job.get("submission_id"), _job(job)) for job in listed if isinstance(job, dict))
        return tuple(name for name, job in found if isinstance(name, str) and name.startswith(prefix) and job.ended)

    async def submit(self, submission_id: str, entrypoint: str) -> bool:
        # No CPU of its own: it is there where every CPU is taken, and where the head offers none.
        job = {"submission_id": submission_id, "entrypoint": entrypoint, "entrypoint_num_cpus": 0}
        status, _ = await self._call("POST", "", job)
        return status == 200

    async def stop(self, submission_id: str) -> None:
        await self._call("POST", f"{submission_id}/stop")

    async def delete(self, submission_id: str) -> bool:
        status, _ = await self._call("DELETE", submission_id)
        return status in (200, 404)

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        return await self._dashboard.call(method, JOBS_PATH + path, body, most=MOST_BYTES)


def _job(answer: Mapping[str, Any]) -> Job:
    status, code, message = answer.get("status"), answer.get("driver_exit_code"), answer.get("message")
    return Job(
        status=status if isinstance(status, str) else "",
        exit_code=code if isinstance(code, int) else None,
        message=message if isinstance(message, str) else "",
    )
