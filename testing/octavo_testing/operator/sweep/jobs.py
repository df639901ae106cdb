"""The jobs of one Ray. What they run is not looked at, but for one that sleeps: they all ask what
``octavo_operator.serve.import_check`` asks."""

import math
import random
from dataclasses import dataclass

from octavo_api import __version__
from octavo_testing.operator.sweep.clock import Timeline

_WATCHED_S = 1.0
"""How often Ray looks at each job."""


@dataclass(eq=False)
class Job:
    name: str
    entrypoint: str
    ends_at: float
    status: str = "PENDING"
    exit_code: int | None = None
    message: str = ""

    @property
    def ended(self) -> bool:
        return self.status not in ("PENDING", "RUNNING")


class Jobs:
    """``answer`` is how a job ends: its exit code, and the last line that it prints."""

    def __init__(self, timeline: Timeline, rng: random.Random) -> None:
        self.answer: tuple[int, str] = (0, "")
        self.seconds = 3.0
        self.known: dict[str, Job] = {}
        self.submitted: list[str] = []
        self.watched_s = _WATCHED_S
        self._came_back: set[str] = set()
        self._timeline, self._rng = timeline, rng

    def install(self, version: str | None = __version__, missing: str = "octavo_serving") -> None:
        """Puts Octavo into this Ray, or takes it away."""
        if version is None:
            self.answer = 81, f"octavo: missing {missing}"
        else:
            self.answer = (0, "") if version == __version__ else (82, f"octavo: version {version}")

    def find(self, name: str) -> Job | None:
        job = self.known.get(name)
        if job is not None and not job.ended:
            job.status = "RUNNING"
            if self._timeline.now >= job.ends_at:
                self._finish(job)
        return job

    def ended(self, prefix: str) -> tuple[str, ...]:
        names = [name for name in self.known if name.startswith(prefix)]
        return tuple(name for name in names if (job := self.find(name)) is not None and job.ended)

    def submit(self, name: str, entrypoint: str) -> bool:
        if name in self.submitted:
            # Ray takes one that it has forgotten, but it may fail for what is still done about the first.
            return False
        seconds = math.inf if entrypoint.startswith("sleep ") else self._rng.uniform(0.5, self.seconds)
        self.known[name] = Job(name, entrypoint, self._timeline.now + seconds)
        self.submitted.append(name)
        return True

    def stop(self, name: str) -> bool:
        job = self.find(name)
        if job is None or job.ended:
            return False
        job.status, job.ends_at = "STOPPED", self._timeline.now
        return True

    def delete(self, name: str) -> bool:
        """False where it has not ended: Ray refuses then."""
        job = self.find(name)
        if job is not None and not job.ended:
            return False
        if job is not None and name not in self._came_back and self._timeline.now < job.ends_at + self.watched_s:
            self._came_back.add(name)
            self._timeline.after(_WATCHED_S, self._come_back, job, self.known)
        self.known.pop(name, None)
        return True

    def lose_everything(self) -> None:
        self.known = {}

    def _come_back(self, job: Job, known: dict[str, Job]) -> None:
        """Whoever watched it finds it gone, and writes it down as failed."""
        known[job.name] = Job(job.name, "Entrypoint not found.", 0.0, "FAILED")

    def _finish(self, job: Job) -> None:
        job.exit_code, said = self.answer
        job.status = "FAILED" if job.exit_code else "SUCCEEDED"
        if job.exit_code:
            echo = f"Running entrypoint for job: {job.entrypoint}"
            job.message = (
                f"Job entrypoint command failed with exit code {job.exit_code}, last available logs "
                f"(truncated to 20,000 chars):\n{echo}\n{said}\n"
            )
