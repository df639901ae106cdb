"""Health, metrics, logs, options: what an administrator sees of the operator."""

import json
import logging
import subprocess
import sys

import aiohttp
import pytest
from yarl import URL

from octavo_api.errors import ConfigurationError
from octavo_operator import logs, options
from octavo_operator.health import HealthServer, Limits, failed_checks
from octavo_operator.kube.events import WINDOW_S, EventLog
from octavo_operator.loop.queue import WorkQueue
from octavo_operator.loop.watch_ages import WatchAges, watch_name
from octavo_operator.metrics import Metrics
from octavo_operator.model.actions import Event
from octavo_operator.model.observed import Key, Observed, Reach, Resource, ServeState

KEY = Key("prod", "books")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def never(_: Key) -> float:
    raise AssertionError("not called")


def parts():
    clock = Clock()
    return clock, WatchAges(clock), WorkQueue(never, now=clock), Metrics()


def test_a_watch_that_was_never_heard_is_as_deaf_as_one_that_fell_silent():
    clock, watches, queue, _ = parts()
    watches.expect_only(["servingdeployments", "services"])
    clock.now += 100
    watches.record("services")
    clock.now += 200
    limits = Limits(watch_s=240)
    assert failed_checks(watches, queue, limits) == ["the watch of servingdeployments has received nothing for 300 s"]
    watches.expect_only(["services"])
    assert failed_checks(watches, queue, limits) == []


def test_only_a_key_that_waits_for_a_worker_counts_as_lag():
    clock, watches, queue, _ = parts()
    queue.add(KEY, 1000)
    clock.now += 900
    assert failed_checks(watches, queue, Limits()) == []
    clock.now += 600
    assert failed_checks(watches, queue, Limits()) == ["a reconcile has waited or run for 500 s"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/apis/ray.io/v1/rayclusters?watch=true", "rayclusters"),
        ("/apis/ray.io/v1/namespaces/prod/rayclusters", "rayclusters/prod"),
        ("/api/v1/services", "services"),
        ("/api/v1/namespaces/prod/services", "services/prod"),
        ("/api/v1/namespaces/prod/services/books", None),
        ("/apis/ray.io/v1", None),
        ("/api", None),
        ("/", None),
    ],
)
def test_watches_are_told_apart_by_their_paths(path, name):
    assert watch_name(URL(f"http://server{path}")) == name


async def test_metrics_are_named_and_labelled():
    _, watches, queue, metrics = parts()
    watches.expect_only(["services"])
    queue.add(KEY)
    metrics.reconciled("ok", 0.02)
    metrics.reconciled("Unavailable", 3)
    metrics.status(KEY, {"conditions": [{"type": "Ready", "status": "True"}]})
    metrics.observed(Observed(serve={"a": ServeState("a", Reach.UNREACHABLE)}))
    metrics.event("DriftCorrected")
    metrics.event("Scaled")
    async with (
        HealthServer(
            watches, queue, metrics, health_port=0, metrics_port=0, limits=Limits(), host="127.0.0.1"
        ) as server,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{server.ports[0]}/metrics") as response,
    ):
        text = await response.text()
    for line in (
        'octavo_operator_reconcile_total{result="ok"} 1.0',
        'octavo_operator_reconcile_total{result="Unavailable"} 1.0',
        "octavo_operator_reconcile_duration_seconds_count 2.0",
        'octavo_operator_resource_ready{name="books",resource_namespace="prod"} 1.0',
        'octavo_operator_ray_api_errors_total{reach="Unreachable"} 1.0',
        "octavo_operator_drift_corrections_total 1.0",
        'octavo_operator_watch_age_seconds{resource="services"} 0.0',
        "octavo_operator_queue_depth 1.0",
    ):
        assert line in text.splitlines()
    metrics.status(KEY, {"conditions": [{"type": "Ready", "status": "False"}]})
    assert b'resource_ready{name="books",resource_namespace="prod"} 0.0' in metrics.render()
    metrics.forget(KEY)
    metrics.forget(KEY)
    assert b"books" not in metrics.render()


async def test_a_port_that_is_taken_is_said_and_nothing_stays_open():
    _, watches, queue, metrics = parts()
    first = HealthServer(watches, queue, metrics, health_port=0, metrics_port=0, limits=Limits(), host="127.0.0.1")
    async with first:
        taken = first.ports[0]
        second = HealthServer(
            watches, queue, metrics, health_port=taken, metrics_port=0, limits=Limits(), host="127.0.0.1"
        )
        with pytest.raises(OSError, match=str(taken)):
            await second.__aenter__()


def test_logs_are_json_with_the_deployment_and_the_error():
    record = logging.LogRecord("octavo_operator.act", logging.INFO, "", 0, "apply %s", ("Service",), None)
    record.deployment = "prod/books"
    entry = json.loads(logs.JsonFormatter().format(record))
    assert entry["message"] == "apply Service"
    assert entry["deployment"] == "prod/books"
    assert entry["level"] == "info"
    assert entry["time"].endswith("+00:00")
    try:
        raise ValueError("wrong\nin two lines")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    line = logs.JsonFormatter().format(record)
    assert "\n" not in line
    assert "in two lines" in json.loads(line)["error"]


def test_equal_events_within_ten_minutes_are_one_and_then_a_new_one_begins():
    clock = Clock()
    log = EventLog(clock)
    resource = Resource(KEY, "uid", 1, "1", 0, None, (), {}, {}, {})
    event = Event("Warning", "RayUnreachable", "no answer")
    first = log.document(resource, event)
    clock.now += 300
    second = log.document(resource, event)
    assert second["metadata"] == first["metadata"]
    assert (first["count"], second["count"]) == (1, 2)
    assert second["firstTimestamp"] < second["lastTimestamp"]
    other = log.document(resource, Event("Warning", "RayUnreachable", "another message"))
    assert other["metadata"]["name"] != first["metadata"]["name"]
    clock.now += WINDOW_S
    third = log.document(resource, event)
    assert third["count"] == 1
    assert third["metadata"]["name"] != first["metadata"]["name"]


def test_remembered_events_are_bounded():
    clock = Clock()
    log = EventLog(clock)
    resource = Resource(KEY, "uid", 1, "1", 0, None, (), {}, {}, {})
    for number in range(10_000):
        log.document(resource, Event("Normal", "Scaled", str(number)))
    assert len(log._repeats) <= 4096


def test_options_come_from_flags_then_environment_then_defaults():
    environ = {"OCTAVO_IMAGE": "octavo:2", "OCTAVO_WORKERS": "9", "OCTAVO_NAMESPACES": "a, b"}
    found = options.parse_options(["--workers", "3"], environ)
    assert (found.image, found.workers, found.namespaces, found.health_port) == ("octavo:2", 3, ("a", "b"), 8080)
    assert options.parse_options(["--namespace", "c"], environ).namespaces == ("c",)
    assert options.parse_options(["--all-namespaces"], environ).namespaces == ()
    assert options.parse_options(["--operator-labels", "a=b,c=d"], environ).operator_labels == {"a": "b", "c": "d"}
    assert found.defaults.image == "octavo:2"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--image: missing"),
        (["--image", "i", "--workers", "none"], "--workers: got 'none', allowed: 1 to 256"),
        (["--image", "i", "--log-level", "loud"], "allowed: debug, info, warning, error"),
        (["--image", "i", "--health-port", "70000"], "allowed: 0 to 65535"),
        (["--image", "i", "--bind-address", "localhost"], "--bind-address: got 'localhost', allowed: an IP address"),
        (["--image", "i", "--operator-labels", "a"], "allowed: KEY=VALUE"),
        (["--image", "i", "--all-namespaces", "--namespace", "a"], "not both"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(arguments, words):
    with pytest.raises(ConfigurationError, match=words):
        options.parse_options(arguments, {})


def test_the_operator_carries_neither_torch_nor_ray():
    code = "import sys, octavo_operator.main; print({'torch', 'ray', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.parametrize(
    "command", [["-m", "octavo_operator.main"], ["-c", "from octavo_cli.main import main; main()", "operator"]]
)
def test_both_commands_say_what_is_wrong_in_one_line(command, tmp_path):
    environ = {"KUBECONFIG": str(tmp_path / "none"), "PATH": "/usr/bin"}
    run = [sys.executable, *command]
    done = subprocess.run([*run, "--image", "i"], capture_output=True, text=True, env=environ)
    assert done.returncode == 1
    assert "set KUBECONFIG" in done.stderr
    assert "Traceback" not in done.stderr
    done = subprocess.run([*run, "--help"], capture_output=True, text=True, env=environ)
    assert done.returncode == 0
    assert "--namespace" in done.stdout
