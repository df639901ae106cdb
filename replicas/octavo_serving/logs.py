"""A replica's logs, in Serve's own file of the replica, and as JSON lines in the pod's log.

Ray sends the output of its workers into files of its session's folder. Serve in its fast mode prints nothing at all. So
a pod sets ``OCTAVO_LOG_STREAM=container``, and replicas write to its container's standard output.
"""

import json
import logging
import logging.handlers
import os
import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from octavo_api.errors import StartupError
from octavo_api.resource.serve_config import CONTAINER_LOG, LOG_VARIABLE

_SERVE = "ray.serve"
_WAITING_LINES = 10_000
"""Maximum lines that wait for the log's reader.

Further lines are dropped, because a replica never waits for the reader.
"""


class JsonLines(logging.Formatter):
    """One line for each record: time (UTC), level, logger, message, the ``labels``, request and traceback."""

    converter = time.gmtime  # type: ignore[assignment]  # the stubs omit its default

    def __init__(self, **labels: str) -> None:
        super().__init__(datefmt="%Y-%m-%dT%H:%M:%S")
        self._labels = labels

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": f"{self.formatTime(record, self.datefmt)}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._labels,
        }
        if request := getattr(record, "request_id", None):
            line["request"] = str(request)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class _Lines(logging.handlers.QueueHandler):
    """Handler that formats in the thread of the record. Another thread writes."""

    def prepare(self, record: logging.LogRecord) -> str:
        return self.format(record)


class _Writer(logging.handlers.QueueListener):
    def __init__(self, lines: "queue.Queue[str]", stream: TextIO) -> None:
        super().__init__(lines)
        self._stream = stream

    def handle(self, record: str) -> None:  # type: ignore[override]
        self._stream.write(record + "\n")


@contextmanager
def replica_logs(packages: tuple[str, ...], application: str, deployment: str, replica: str) -> Iterator[None]:
    """Configure the logs of a replica. Log the errors of its constructor, which this context surrounds."""
    _add_serve_handlers(packages)
    if path := os.environ.get(LOG_VARIABLE):
        log_to_stream(path, packages, application=application, deployment=deployment, replica=replica)
    logger = logging.getLogger(__name__)
    try:
        yield
    except StartupError as error:
        logger.error("%s %s cannot start: %s", deployment.lower(), replica, error.message)
        raise
    except Exception:
        logger.exception("%s %s cannot start", deployment.lower(), replica)
        raise


def container_output(proc: Path = Path("/proc")) -> str:
    """Return the standard output of the container's first process, the process without a parent in the container."""
    pid = os.getpid()
    while parent := _parent(proc, pid):
        pid = parent
    return f"{proc}/{pid}/fd/1"


def _parent(proc: Path, pid: int) -> int:
    # The name, in parentheses, may have any character in it.
    return int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])


def _add_serve_handlers(packages: tuple[str, ...]) -> None:
    """Write these packages' logs into the replica's own log file, beside Serve's lines about it."""
    handlers = logging.getLogger(_SERVE).handlers
    for package in packages:
        logger = logging.getLogger(package)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        for handler in handlers:
            logger.addHandler(handler)


def log_to_stream(path: str, packages: tuple[str, ...], **labels: str) -> None:
    """Write these packages' logs, and the warnings of all others, to ``path``.

    Log a warning if ``path`` cannot be opened.
    """
    try:
        path = container_output() if path == CONTAINER_LOG else path
        stream = open(path, "a", buffering=1)  # noqa: SIM115 - open as long as the process lives
    except OSError as error:
        logging.getLogger(__name__).warning("cannot write logs to %s: %s", path, error.strerror)
        return
    lines: queue.Queue[str] = queue.Queue(_WAITING_LINES)
    _Writer(lines, stream).start()
    for names, level in ((packages, logging.NOTSET), ((_SERVE, None), logging.WARNING)):
        handler = _Lines(lines)
        handler.setFormatter(JsonLines(**labels))
        handler.setLevel(level)
        for name in names:
            logging.getLogger(name).addHandler(handler)
