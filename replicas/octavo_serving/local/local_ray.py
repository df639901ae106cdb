"""A private Ray on this machine, for ``octavo up`` and for tests. Its folder, token and processes are not shared.

Ray's own servers listen on every interface, whatever address they are given. The token in the private folder protects
them. Only this user can read it.
"""

import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from octavo_serving.local import processes
from octavo_serving.secrets import create_secret

_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
}


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The private folder of one run.

    Its path is short, because Ray puts unix sockets (107 characters at most) below it.
    """

    path: Path

    @classmethod
    def create(cls) -> Self:
        folder = cls(Path(tempfile.mkdtemp(prefix="octavo-", dir="/tmp")))
        create_secret(folder.ray_token)
        return folder

    @property
    def ray_token(self) -> Path:
        return self.path / "ray-token"

    @property
    def ray(self) -> Path:
        return self.path / "ray"

    @property
    def logs(self) -> Path:
        return self.ray / "session_latest" / "logs"

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class LocalRay:
    """Ray of this process, with all processes that it started. A process has at most one at a time."""

    def __init__(self, folder: RunFolder, *, num_cpus: int, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self._num_cpus = num_cpus
        self._environment = {**_ENVIRONMENT, **(environment or {}), "RAY_AUTH_TOKEN_PATH": str(folder.ray_token)}
        self._before: dict[str, str | None] = {}
        self._spared: set[int] = set()

    def start(self) -> None:
        """Start Ray. Raise ``StartupError``, also if this process is connected to a Ray already."""
        self._before = {name: os.environ.get(name) for name in (*self._environment, *_FOREIGN)}
        for name in _FOREIGN:
            os.environ.pop(name, None)
        os.environ.update(self._environment)
        self._spared = processes.descendants(os.getpid())
        processes.adopt_orphans()
        try:
            from octavo_serving import ray_adapter

            logging.getLogger("ray.serve").setLevel(logging.WARNING)
            ray_adapter.start_ray(self._num_cpus, self.folder.ray)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End all processes started since ``start``; kill a process that does not end by itself. Idempotent."""
        import ray

        ray.shutdown()
        processes.end_descendants(spare=self._spared)
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before = {}


_FOREIGN = ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_RUNTIME_ENV_HOOK", "RAY_TMPDIR")
"""Variables that would tie this Ray to another one."""
