import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo_api.errors import ConfigurationError
from octavo_api.resource.serve_config import LOG_VARIABLE
from octavo_serving.logs import container_output, replica_logs
from octavo_testing.waiting import eventually

PACKAGE = "octavo_log_test"


@pytest.fixture
def package() -> Iterator[str]:
    """A package's logger of the test's own; all loggers are as before afterwards."""
    loggers = [logging.getLogger(name) for name in (None, "ray.serve", PACKAGE)]
    before = [list(logger.handlers) for logger in loggers]
    yield PACKAGE
    for logger, handlers in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "stream"
    path.touch()
    monkeypatch.setenv(LOG_VARIABLE, str(path))
    return path


@pytest.fixture
def lines(stream: Path) -> Callable[[int], list[dict[str, Any]]]:
    """Wait for a number of lines."""
    return lambda count: eventually(
        f"{count} lines",
        lambda: (found := stream.read_text().splitlines())[count - 1 :] and [json.loads(line) for line in found],
    )


def test_a_line_says_when_what_where_and_of_which_request(package: str, lines: Any) -> None:
    with replica_logs((package,), "books", "Engine", "r1"):
        logging.getLogger(f"{package}.part").info("took %d\nlines", 3)
        try:
            raise ValueError("no such page")
        except ValueError:
            logging.getLogger(package).exception("failed", extra={"request_id": "q7"})
        logging.getLogger("elsewhere").info("not said")
        logging.getLogger("elsewhere").warning("said")
    first, second, third = lines(3)
    labels = {"application": "books", "deployment": "Engine", "replica": "r1"}
    assert {name: first[name] for name in labels} == labels
    assert (first["level"], first["logger"], first["message"]) == ("info", f"{package}.part", "took 3\nlines")
    assert first["time"].endswith("Z")
    assert "request" not in first
    assert (second["level"], second["request"]) == ("error", "q7")
    assert "ValueError: no such page" in second["traceback"]
    assert (third["logger"], third["message"]) == ("elsewhere", "said")


def test_what_a_constructor_cannot_do_is_logged(package: str, lines: Any) -> None:
    with pytest.raises(ConfigurationError), replica_logs((package,), "books", "Gateway", "r2"):
        raise ConfigurationError("/etc/octavo/tls/tls.crt: No such file or directory")
    [line] = lines(1)
    assert line["message"] == "gateway r2 cannot start: /etc/octavo/tls/tls.crt: No such file or directory"
    assert "traceback" not in line


def test_a_stream_that_cannot_be_opened_is_said_and_nothing_else_happens(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(LOG_VARIABLE, str(tmp_path))
    with replica_logs((package,), "books", "Engine", "r3"):
        pass
    assert f"cannot write logs to {tmp_path}: Is a directory" in caplog.text


def test_the_containers_output_is_that_of_its_first_process(tmp_path: Path) -> None:
    for pid, name, parent in ((os.getpid(), "ray::Replica", 40), (40, "ray) let (", 7), (7, "ray", 0), (1, "pause", 0)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} {pid} 0 -1")
    assert container_output(tmp_path) == f"{tmp_path}/7/fd/1"
