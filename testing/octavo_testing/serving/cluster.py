"""The application on a real Ray Serve: deployed by a test, and looked at from outside."""

import itertools
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from octavo_api.resource.deployment import ServingDeployment
from octavo_api.resource.serve_config import Bind, Placement, application
from octavo_serving.local.processes import descendants
from octavo_testing.streams import Stream
from octavo_testing.waiting import eventually

if TYPE_CHECKING:
    from octavo_serving.local.local_ray import RunFolder
    from octavo_serving.ray_adapter import Controller

APPLICATION = "octavo_testing.apps.serving:build"
APP = "books"
TIMEOUT_S = 50.0


@dataclass(frozen=True)
class Replica:
    id: str
    pid: int


class Cluster:
    """Deploys the application of ``octavo_testing.apps.serving`` and looks at it from outside."""

    def __init__(
        self, controller: "Controller", folder: "RunFolder", ports: Sequence[int], hang: Path, log: Path
    ) -> None:
        self.folder = folder
        self.hang = hang
        self.log = log
        self.http_port, self.grpc_port, self.proxy_port = ports
        self.direct = f"http://127.0.0.1:{self.http_port}"
        self.proxied = f"http://127.0.0.1:{self.proxy_port}/{APP}"
        self._controller = controller
        self._prompts = itertools.count(1001)

    def application(self, placed: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
        """``placed`` replaces fields of the placement."""
        document = {
            "metadata": {"name": APP},
            "spec": {
                "model": {"uri": "embedded://smollm2"},
                "endpoint": self.endpoint(self.grpc_port),
                "rollout": {"drainSeconds": 30},
                **spec,
            },
        }
        placement = Placement(
            name=APP,
            owner="local",
            bind=Bind.LOOPBACK,
            http_port=self.http_port,
            grpc_port=document["spec"]["endpoint"]["grpc"]["port"],
            engine_cpus=0.1,
            gateway_cpus=0,
            replicas_on_node=2,
            route_prefix=f"/{APP}",
        )
        made = application(ServingDeployment.read(document), replace(placement, **(placed or {})))
        return made | {"import_path": APPLICATION}

    def endpoint(self, grpc_port: int) -> dict[str, Any]:
        return {"http": {"port": self.http_port}, "grpc": {"port": grpc_port}}

    def deploy(self, engines: int | None = None, import_path: str = APPLICATION, **spec: Any) -> None:
        """Deploys and waits until the counts are what was asked for and the gateway knows its engines."""
        self.apply(self.application(**spec) | {"import_path": import_path})
        engines = spec.get("replicas", 1) if engines is None else engines
        gateways = spec.get("router", {}).get("replicas", 1)
        eventually("the application runs", lambda: self._stays_settled(engines, gateways))
        eventually("every engine is known", lambda: self.ready_engines() == engines)

    def apply(self, application: dict[str, Any]) -> None:
        self._controller.apply([application])

    def _stays_settled(self, engines: int, gateways: int) -> bool:
        """Serve's controller reads a configuration within a turn or two of its loop, 0.1 s each."""
        for _ in range(5):
            if not self.settled(engines, gateways):
                return False
            time.sleep(0.1)
        return True

    def settled(self, engines: int, gateways: int) -> bool:
        application = self.details()["applications"].get(APP, {})
        counts = (len(self.replicas("Engine")), len(self.replicas("Gateway")))
        states = {d["status"].value for d in application.get("deployments", {}).values()}
        assert application.get("status") != "DEPLOY_FAILED", [
            (name, d["status"], d["message"]) for name, d in application["deployments"].items()
        ]
        return application.get("status") == "RUNNING" and states == {"HEALTHY"} and counts == (engines, gateways)

    def details(self) -> dict[str, Any]:
        try:
            return dict(self._controller.details())
        except self._controller.UNREACHABLE:
            return {"applications": {}}

    def replicas(self, deployment: str, *states: str) -> list[Replica]:
        """Returns those in one of the states, ``RUNNING`` where none is given."""
        deployments = self.details()["applications"].get(APP, {}).get("deployments", {})
        found = deployments.get(deployment, {}).get("replicas", ())
        return [
            Replica(r["replica_id"], r["pid"]) for r in found if r["state"] in (states or ("RUNNING",)) and r.get("pid")
        ]

    def engine_secret(self) -> str:
        from octavo_serving.secrets import engine_secret

        return engine_secret(APP)

    def kill(self, victim: Replica) -> None:
        os.kill(victim.pid, signal.SIGKILL)

    def noticed(self, victim: Replica) -> bool:
        """Serve calls a dead replica running until its next health check."""
        return victim not in self.replicas("Engine") + self.replicas("Gateway")

    def actor_pid(self, title: str) -> int:
        """Returns the process of a Ray actor below this one, by the title that Ray gives it."""
        for pid in descendants(os.getpid()):
            with suppress(OSError):  # one that ends
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(title.encode()):
                    return pid
        raise AssertionError(f"no process {title}")

    def ready_engines(self) -> int:
        """Returns how many engines the gateway at the port says it can send to."""
        try:
            page = httpx.get(f"{self.direct}/metrics", timeout=5, trust_env=False).text
        except httpx.HTTPError:
            return -1
        return sum(
            float(line.rpartition(" ")[2]) > 0
            for line in page.splitlines()
            if line.startswith("octavo_router_stream_state{") and 'state="live"' in line
        )

    def complete(self, url: str, **fields: Any) -> httpx.Response:
        body = {"model": APP, "prompt": "Once", "max_tokens": 8, "ignore_eos": True, "temperature": 0, **fields}
        headers = {"x-octavo-explain": "1"}
        return httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=TIMEOUT_S, trust_env=False)

    def new_prompt(self, tokens: int) -> list[int]:
        """Return token ids that no prompt had before."""
        first = next(self._prompts)
        return [first + 7 * n for n in range(tokens)]

    def series(self, name: str) -> list[float]:
        """Returns a family on the gateway's page."""
        page = httpx.get(f"{self.direct}/metrics", timeout=5, trust_env=False).text
        lines = [line for line in page.splitlines() if line.split("{")[0].split(" ")[0] == name]
        return [float(line.rpartition(" ")[2]) for line in lines]

    def metric(self, name: str) -> float:
        """Returns the sum over all replicas of a family on the gateway's page; 0 where it has no series."""
        return sum(self.series(name))

    def log_lines(self) -> list[dict[str, Any]]:
        """Returns what all replicas have written where a pod's standard output would be."""
        written = self.log.read_text() if self.log.exists() else ""  # a replica creates it with its first line
        return [json.loads(line) for line in written.splitlines()]

    @contextmanager
    def busy(self, *prompts: list[int]) -> Iterator[None]:
        """Keep streams open that do not end by themselves."""
        lines: list[Iterator[str]] = []
        with ExitStack() as stack:
            client = stack.enter_context(httpx.Client(timeout=TIMEOUT_S, trust_env=False))
            for prompt in prompts:
                body = {"model": APP, "prompt": prompt, "max_tokens": 7000, "ignore_eos": True, "stream": True}
                url = f"{self.direct}/v1/completions"
                response = stack.enter_context(client.stream("POST", url, json=body))
                assert response.status_code == 200, response.read()
                lines.append(response.iter_lines())  # the connection is closed with its last iterator
                next(lines[-1])
            yield

    def stream(self, max_tokens: int, url: str | None = None, prompt: str = "Once upon a time") -> Stream:
        return Stream(f"{url or self.direct}/v1", APP, prompt, max_tokens)
