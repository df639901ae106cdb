"""The life of ``octavo up`` once everything is checked: start, wait, tell, stop."""

import shutil
import signal
import tempfile
import threading
import time
from math import ceil
from pathlib import Path
from types import FrameType

import httpx

from octavo_api.deployment import ServingDeployment
from octavo_api.errors import StartupError
from octavo_api.serve_config import Bind, Placement, application
from octavo_cli.deployment_state import ApplicationState, last_report, read_application
from octavo_cli.display import Display, Update
from octavo_cli.greeting import greeting
from octavo_cli.machine import share
from octavo_cli.preflight import HOST
from octavo_serving.local import LocalRay, RunFolder
from octavo_serving.ray_adapter import Controller

_POLL_S = 0.2
_WATCH_S = 2.0
_READY_TIMEOUT_S = 30.0
_DRAIN_S = 10.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ENVIRONMENT = {"RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT": "1"}
"""A replica that cannot start says why at once; trying again on one machine changes nothing."""


class Stopped(BaseException):
    """SIGINT or SIGTERM before the endpoint was up."""


class LocalService:
    """Serves ``deployment`` on this machine until a signal; leaves nothing behind but the logs of a failure."""

    def __init__(self, deployment: ServingDeployment, api_key_file: Path | None, cpus: float, display: Display) -> None:
        self._deployment = deployment
        self._api_key_file = api_key_file
        self._name = deployment.metadata.name
        self._display = display
        self._cpus = cpus
        self._signals = 0
        self._stop = threading.Event()
        self._starting = True

    def run(self, began: float) -> None:
        """Returns after it was stopped; raises ``StartupError`` where it cannot start. ``began`` is the command's."""
        folder = RunFolder.create()
        ray = LocalRay(folder, num_cpus=ceil(self._cpus), environment=_ENVIRONMENT)
        try:
            self._catch_signals()
            self._serve(ray, began)
        except Stopped:
            self._display.say("Stopped before it was ready")
        except StartupError as error:
            raise StartupError(f"{error.message}\nLogs: {_keep_logs(folder)}") from error
        finally:
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            ray.stop()
            folder.remove()

    def _serve(self, ray: LocalRay, began: float) -> None:
        with self._display.stage("Ray"):
            ray.start()
            self._catch_signals()  # Ray has put a handler of its own in place
            controller = Controller.start(proxy_location="Disabled")
        controller.apply([application(self._deployment, self._placement())])
        with self._display.stage("Replicas") as update:
            self._wait_until_running(controller, ray.folder, update)
            self._wait_until_ready()
        self._starting = False
        text = greeting(self._deployment, self._api_key_file, ray.folder.logs / "serve")
        self._display.console.print(
            f"Ready in {time.monotonic() - began:.1f} s\n\n{text}\n", markup=False, soft_wrap=True
        )
        self._watch(controller, ray.folder)
        with self._display.stage("Stopping; Ctrl-C again stops at once"):
            self._drain(controller, ray.folder)

    def _placement(self) -> Placement:
        spec = self._deployment.spec
        most = spec.replicas if spec.autoscaling is None else spec.autoscaling.max_replicas
        return Placement(
            name=self._name,
            owner="local",
            bind=Bind.LOOPBACK,
            http_port=spec.endpoint.http.port,
            grpc_port=spec.endpoint.grpc.port,
            engine_cpus=spec.resources.limits.cpu or share(self._cpus, most),
            gateway_cpus=0,
            replicas_on_node=max(most, 1),
            api_key_file=str(self._api_key_file.resolve()) if self._api_key_file else None,
        )

    def _wait_until_running(self, controller: Controller, folder: RunFolder, update: Update) -> None:
        while not (state := self._state(controller, folder)).running:
            if state.failed:
                raise StartupError(state.error())
            reports = [report for log in state.starting_logs() if (report := last_report(log))]
            update(" · ".join(filter(None, (state.summary(), *reports[-1:]))))
            self._pause(_POLL_S)

    def _wait_until_ready(self) -> None:
        """The application runs; the endpoint answers once the gateway has met its engines."""
        url = f"http://{HOST}:{self._deployment.spec.endpoint.http.port}/ready"
        deadline = time.monotonic() + _READY_TIMEOUT_S
        answer = "nothing"
        with httpx.Client(timeout=5.0, trust_env=False) as client:
            while time.monotonic() < deadline:
                try:
                    response = client.get(url)
                except httpx.TransportError as error:
                    answer = str(error)
                else:
                    if response.is_success or self._deployment.spec.replicas == 0:
                        return
                    answer = f"{response.status_code} {response.text}"
                self._pause(_POLL_S / 4)
        raise StartupError(f"{url}: not ready after {_READY_TIMEOUT_S:.0f} s: {answer}")

    def _pause(self, seconds: float) -> None:
        """Raises ``Stopped``, which is lost where a signal comes while Ray runs a callback of its own."""
        if self._stop.wait(seconds):
            raise Stopped

    def _watch(self, controller: Controller, folder: RunFolder) -> None:
        """Says when replicas come and go, until the first signal."""
        shown = self._state(controller, folder).summary()
        while not self._stop.wait(_WATCH_S):
            state = self._state(controller, folder)
            if state.status and (summary := state.summary()) != shown:
                self._display.say(f"{time.strftime('%H:%M:%S')} {summary}")
                shown = summary

    def _drain(self, controller: Controller, folder: RunFolder) -> None:
        """Lets running answers end, for a few seconds, unless a second signal comes."""
        controller.apply([])
        deadline = time.monotonic() + _DRAIN_S
        while self._signals < 2 and time.monotonic() < deadline and self._state(controller, folder).status:
            time.sleep(_POLL_S)

    def _state(self, controller: Controller, folder: RunFolder) -> ApplicationState:
        try:
            details = controller.details()
        except controller.UNREACHABLE:
            details = {}
        return read_application(details, self._name, folder.logs)

    def _catch_signals(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, self._caught)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        self._stop.set()
        if self._starting:
            raise Stopped


def _keep_logs(folder: RunFolder) -> Path:
    """Moves the logs of replicas out of the folder that is about to be removed."""
    kept = Path(tempfile.mkdtemp(prefix="octavo-logs-"))
    source = folder.logs / "serve"
    if source.is_dir():
        shutil.copytree(source, kept, dirs_exist_ok=True)
    return kept
