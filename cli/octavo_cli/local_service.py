"""The life of ``octavo up`` after all checks: start, wait, report, stop."""

import shutil
import tempfile
import time
from contextlib import suppress
from math import ceil
from pathlib import Path

import httpx

from octavo_api.errors import StartupError
from octavo_api.resource.deployment import ServingDeployment
from octavo_cli.display import Display, Update
from octavo_cli.greeting import greeting
from octavo_cli.local_operator import LocalOperator, Look, placement
from octavo_cli.local_serve import InProcess
from octavo_cli.preflight import HOST
from octavo_cli.progress import progress, summary
from octavo_cli.signals import Signals, Stopped
from octavo_serving.local.local_ray import LocalRay, RunFolder
from octavo_serving.ray_adapter import Controller

_POLL_S = 0.2
_WATCH_S = 2.0
_READY_TIMEOUT_S = 30.0
_DRAIN_S = 10.0
_ENVIRONMENT = {"RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT": "1"}
"""Variables for Ray. A replica logs at once why it cannot start, because a retry on one machine changes nothing."""


class LocalService:
    """Service of ``deployment`` on this machine until a signal.

    It leaves nothing behind except the logs of a failure.
    """

    def __init__(self, deployment: ServingDeployment, api_key_file: Path | None, cpus: float, display: Display) -> None:
        self._deployment = deployment
        self._api_key_file = api_key_file
        self._cpus = cpus
        self._display = display
        self._signals = Signals()
        self._reported: tuple[str, ...] = ()

    def run(self, began: float) -> None:
        """Serve until a signal stops it. ``began`` is the start time of the command.

        Raise ``StartupError`` if the service cannot start.
        """
        folder = RunFolder.create()
        ray = LocalRay(folder, num_cpus=ceil(self._cpus), environment=_ENVIRONMENT)
        try:
            self._signals.catch()
            self._serve(ray, began)
        except Stopped:
            if self._signals.raising:
                self._display.print("Stopped before the service was ready")
        except StartupError as error:
            raise StartupError(f"{error.message}\nLogs: {_keep_logs(folder)}") from error
        finally:
            self._signals.ignore()
            ray.stop()
            folder.remove()

    def _serve(self, ray: LocalRay, began: float) -> None:
        with self._display.stage("Ray"):
            ray.start()
            self._signals.catch()  # Ray's crash handler replaced ours for SIGTERM and would print a stack trace
            controller = Controller.start(proxy_location="Disabled")
        where = placement(self._deployment, self._api_key_file, self._cpus)
        with LocalOperator(self._deployment, where, InProcess(controller)) as operator:
            with self._display.stage("Replicas") as update:
                self._wait_until_running(operator, ray.folder.logs, update)
                self._wait_until_ready()
            self._signals.raising = False
            text = greeting(self._deployment, self._api_key_file, ray.folder.logs / "serve")
            self._display.console.print(
                f"Ready in {time.monotonic() - began:.1f} s\n\n{text}\n", markup=False, soft_wrap=True
            )
            self._watch(operator)
            with self._display.stage("Stopping (press Ctrl-C again to stop at once)"):
                self._drain(operator)

    def _wait_until_running(self, operator: LocalOperator, logs: Path, update: Update) -> None:
        while not (look := operator.round()).ready:
            if look.hindrance:
                raise StartupError(look.hindrance)
            self._report(look)
            update(progress(look.application, logs))
            self._signals.pause(_POLL_S)

    def _wait_until_ready(self) -> None:
        """Wait until the endpoint answers.

        All replicas run already, but the gateway must still connect to its engines.
        """
        url = f"http://{HOST}:{self._deployment.spec.endpoint.http.port}/ready"
        deadline = time.monotonic() + _READY_TIMEOUT_S
        answer = "no answer"
        with httpx.Client(timeout=5.0, trust_env=False) as client:
            while time.monotonic() < deadline:
                try:
                    response = client.get(url)
                except httpx.TransportError as error:
                    answer = str(error)
                else:
                    if response.is_success or self._scaled_to_zero():
                        return
                    answer = f"{response.status_code} {response.text}"
                self._signals.pause(_POLL_S / 4)
        raise StartupError(f"{url}: not ready after {_READY_TIMEOUT_S:.0f} s: {answer}")

    def _scaled_to_zero(self) -> bool:
        spec = self._deployment.spec
        return (spec.replicas if spec.autoscaling is None else spec.autoscaling.min_replicas) == 0

    def _watch(self, operator: LocalOperator) -> None:
        """Report changes of the replicas and corrections, until the first signal."""
        shown = summary(operator.round().application)
        while not self._signals.wait(_WATCH_S):
            look = operator.round()
            self._report(look)
            if (now := summary(look.application)) and now != shown:
                self._print(now)
                shown = now

    def _report(self, look: Look) -> None:
        """Report new messages. A message that repeats is reported once."""
        if look.messages and look.messages != self._reported:
            self._reported = look.messages
            for line in look.messages:
                self._print(line)

    def _print(self, line: str) -> None:
        self._display.print(f"{time.strftime('%H:%M:%S')} {line}")

    def _drain(self, operator: LocalOperator) -> None:
        """Wait some seconds for running answers to end, unless a second signal comes."""
        operator.suspend()
        deadline = time.monotonic() + _DRAIN_S
        with suppress(Stopped):
            while self._signals.count < 2 and time.monotonic() < deadline and not operator.round().stopped:
                time.sleep(_POLL_S)


def _keep_logs(folder: RunFolder) -> Path:
    """Copy the logs of replicas out of ``folder`` before it is removed, and return the copy."""
    kept = Path(tempfile.mkdtemp(prefix="octavo-logs-"))
    source = folder.logs / "serve"
    if source.is_dir():
        shutil.copytree(source, kept, dirs_exist_ok=True)
    return kept
