"""Serve's reports about an application, in words for a person."""

from pathlib import Path
from types import SimpleNamespace

from octavo_cli.progress import last_report, progress, starting_logs, summary
from octavo_operator.serve.details import application_error, error_line, parse_application

OWN = """Traceback (most recent call last):
  File "replica.py", line 1, in initialize
ray.exceptions.RayTaskError: ray::ServeReplica:m:Engine.initialize_and_get_metadata() (pid=1)
    raise ModelError(
octavo_api.errors.NotEnoughMemory: weights need 4.0 GiB, allowed: 2.0 GiB
lower kv_cache_memory_bytes"""


def test_the_cause_is_our_own_error_without_its_traceback() -> None:
    assert error_line(OWN) == "weights need 4.0 GiB, allowed: 2.0 GiB\nlower kv_cache_memory_bytes"


def test_the_cause_of_a_foreign_error_is_its_last_line() -> None:
    assert error_line("Traceback\n  File x\nOSError: disk on fire\n") == "OSError: disk on fire"
    assert error_line("nothing to see\nhere") == "here"
    assert error_line("") == ""


def test_states_are_counted_and_replicas_that_start_say_how_far_they_are(tmp_path: Path) -> None:
    running, starting = SimpleNamespace(value="RUNNING"), SimpleNamespace(value="STARTING")
    replica = {"replica_id": "a", "state": running, "log_file_path": "/serve/a.log"}
    details = {
        "applications": {
            "m": {
                "status": SimpleNamespace(value="DEPLOYING"),
                "message": "",
                "deployments": {
                    "Engine": {
                        "target_num_replicas": 2,
                        "message": "",
                        "replicas": [replica, {"replica_id": "b", "state": starting, "log_file_path": "/serve/b.log"}],
                    },
                },
            }
        }
    }
    application = parse_application(details, "m")
    assert application is not None
    assert application.status == "DEPLOYING"
    assert summary(application) == "Engine 1/2"
    assert list(starting_logs(application, tmp_path)) == [tmp_path / "serve/b.log"]
    assert progress(application, tmp_path) == "Engine 1/2"
    (tmp_path / "serve").mkdir()
    (tmp_path / "serve/b.log").write_text("INFO 2026-01-01 m_Engine abc -- engine abc: warming up\n")
    assert progress(application, tmp_path) == "Engine 1/2 · warming up"


def test_of_an_application_that_serve_does_not_know_yet_nothing_is_said(tmp_path: Path) -> None:
    assert parse_application({"applications": {}}, "m") is None
    assert summary(None) == ""
    assert progress(None, tmp_path) == ""


def test_a_failure_tells_its_cause() -> None:
    details = {
        "applications": {
            "m": {
                "status": "DEPLOY_FAILED",
                "message": "Failed to update the deployments ['Engine'].",
                "deployments": {"Engine": {"message": f"The deployment failed to start 1 times.{OWN}", "replicas": []}},
            }
        }
    }
    application = parse_application(details, "m")
    assert application is not None
    assert application_error(application).startswith("weights need 4.0 GiB")


def test_the_last_report_of_a_log_is_found(tmp_path: Path) -> None:
    log = tmp_path / "replica.log"
    log.write_text(
        "INFO 2026-01-01 m_Engine abc -- engine abc: reading weights\n"
        "INFO 2026-01-01 m_Engine abc -- engine abc: warming up\n"
        "INFO 2026-01-01 m_Engine abc -- CALL x\n"
    )
    assert last_report(log) == "warming up"
    assert last_report(tmp_path / "none.log") == ""


def test_why_a_replica_ends_is_no_progress(tmp_path: Path) -> None:
    log = tmp_path / "replica.log"
    log.write_text(
        "INFO 2026-01-01 m_Engine abc -- engine abc: reading weights\n"
        "ERROR 2026-01-01 m_Engine abc -- engine abc: cannot start: weights need 4 GiB\nlower it\n"
    )
    assert last_report(log) == ""
