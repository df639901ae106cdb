"""Answers that clients get while replicas die or leave: real Ray Serve, real engines, two replicas.

Prints, for each part, how many requests ended how and after how many seconds. Exits 1 where a promise is not kept.

python benchmarks/failures.py [engine] [gateway] [controller] [scale_down]
"""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import client
import drive
from client import Answer

from octavo_api.resource.deployment import ServingDeployment
from octavo_api.resource.serve_config import Bind, Placement, application
from octavo_serving.local.local_ray import LocalRay, RunFolder
from octavo_testing.processes import free_ports
from octavo_testing.waiting import eventually
from octavo_testing.web import get

APP = "smollm2"
VOCAB_SIZE = 49152


class Service:
    """An application on a Ray of its own."""

    def __init__(self, controller: Any) -> None:
        self.http_port, self.grpc_port = free_ports(2)
        self.url = f"http://127.0.0.1:{self.http_port}"
        self._controller = controller

    def apply(self, replicas: int) -> None:
        document = {
            "metadata": {"name": APP},
            "spec": {
                "model": {"uri": "embedded://smollm2"},
                "replicas": replicas,
                "engine": {"kvCacheMemoryBytes": "512Mi", "numThreads": 1},
                "endpoint": {"http": {"port": self.http_port}, "grpc": {"port": self.grpc_port}},
            },
        }
        placement = Placement(
            name=APP,
            owner="local",
            bind=Bind.LOOPBACK,
            http_port=self.http_port,
            grpc_port=self.grpc_port,
            engine_cpus=0.5,
            gateway_cpus=0,
            replicas_on_node=2,
        )
        self._controller.apply([application(ServingDeployment.read(document), placement)])

    def pids(self, deployment: str) -> list[int]:
        details = self._controller.details()["applications"].get(APP, {})
        replicas = details.get("deployments", {}).get(deployment, {}).get("replicas", ())
        return [r["pid"] for r in replicas if r["state"] == "RUNNING" and r.get("pid")]

    def wait(self, what: str, condition: Callable[[], bool], timeout_s: float = 120) -> float:
        """Return after how many seconds ``condition`` held; a service that does not answer does not hold it."""
        start = time.monotonic()

        def holds() -> bool:
            with contextlib.suppress(Exception):
                return condition()
            return False

        eventually(what, holds, timeout_s)
        return time.monotonic() - start

    def live_engines(self) -> int:
        page = get(f"{self.url}/metrics", 2).splitlines()
        lines = [line for line in page if line.startswith("octavo_router_stream_state{") and 'state="live"' in line]
        return sum(float(line.rpartition(" ")[2]) > 0 for line in lines)


@contextlib.contextmanager
def service() -> Iterator[Service]:
    folder = RunFolder.create()
    try:
        with LocalRay(folder, num_cpus=2):
            from octavo_serving.ray_adapter import Controller

            running = Service(Controller.start(proxy_location="Disabled"))
            running.apply(replicas=2)
            running.wait("two live engines", lambda: running.live_engines() == 2)
            yield running
    finally:
        folder.remove()


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [drive.prompt(length, rng, VOCAB_SIZE) for _ in range(count)]


async def streams(
    url: str,
    tokens: Sequence[list[int]],
    output_len: int,
    then: Callable[[], Coroutine[Any, Any, None]] | None = None,
    *,
    delays: Sequence[float] = (),
) -> list[Answer]:
    """Starts one stream for each prompt, after its delay in seconds; runs ``then`` beside them."""

    async def one(session: client.aiohttp.ClientSession, prompt: list[int], delay: float) -> Answer:
        await asyncio.sleep(delay)
        return await client.complete(session, url, prompt, max_tokens=output_len, ignore_eos=True)

    async with client.session() as session:
        waits = delays or [0.0] * len(tokens)
        running = [asyncio.create_task(one(session, p, w)) for p, w in zip(tokens, waits, strict=True)]
        if then:
            await then()
        return list(await asyncio.gather(*running))


def outcome(answer: Answer) -> str:
    if answer.error:
        return f"error event {answer.error.get('code') or answer.error.get('type')}"
    if answer.status != 200:
        return f"HTTP {answer.status}"
    return f"complete ({answer.finish_reason})" if answer.finish_reason else "cut without a word"


def engine(running: Service) -> bool:
    """kill -9 of one of two engines under 32 streams: half of them generate, half have just been sent."""
    killed = [0.0]
    back = [0.0]

    async def kill() -> None:
        await asyncio.sleep(8)
        os.kill(running.pids("Engine")[0], signal.SIGKILL)
        killed[0] = time.monotonic()
        await asyncio.to_thread(running.wait, "one live engine", lambda: running.live_engines() == 1)
        await asyncio.to_thread(running.wait, "two live engines", lambda: running.live_engines() == 2)
        back[0] = time.monotonic() - killed[0]

    delays = [0.0] * 16 + [7.8] * 16
    answers = asyncio.run(streams(running.url, prompts(32, 64, 1), 160, kill, delays=delays))
    broken = [a for a in answers if a.error]
    silent = [a for a in answers if not a.times]
    late = max((a.sent + a.ended - killed[0] for a in broken), default=0.0)
    drive.report(
        "kill -9 of an engine under 32 streams",
        {
            **Counter(map(outcome, answers)),
            "without a token when it died, sent elsewhere": sum(a.route.get("reason") == "retry" for a in answers),
            "without a token and not answered": len(silent),
            "last error event after the kill, s": late,
            "replacement serves after the kill, s": back[0],
        },
    )
    return not silent and late < 2.0 and all(outcome(a).startswith(("complete", "error event")) for a in answers)


def gateway(running: Service) -> bool:
    """kill -9 of the only gateway under 8 streams: what they see, and when the endpoint answers again."""
    killed = [0.0]

    async def kill() -> None:
        await asyncio.sleep(3)
        os.kill(running.pids("Gateway")[0], signal.SIGKILL)
        killed[0] = time.monotonic()

    answers = asyncio.run(streams(running.url, prompts(8, 64, 2), 256, kill))
    running.wait("two live engines", lambda: running.live_engines() == 2)
    drive.report(
        "kill -9 of the gateway under 8 streams",
        {**Counter(map(outcome, answers)), "endpoint answers again after, s": time.monotonic() - killed[0]},
    )
    return True


def controller(running: Service) -> bool:
    """kill -9 of Serve's controller under 8 streams: they must not notice."""
    import ray

    pid = ray.get(ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve").get_pid.remote())

    async def kill() -> None:
        await asyncio.sleep(2)
        os.kill(pid, signal.SIGKILL)

    answers = asyncio.run(streams(running.url, prompts(8, 64, 3), 256, kill))
    back = running.wait("the controller answers", lambda: len(running.pids("Engine")) == 2)
    drive.report(
        "kill -9 of Serve's controller under 8 streams",
        {**Counter(map(outcome, answers)), "controller answers after the streams' end, s": back},
    )
    return all(outcome(a).startswith("complete") for a in answers)


def scale_down(running: Service) -> bool:
    """2 → 1 replicas under 8 streams that outlive the change by 30 s: none cut, each equal to an undisturbed run."""
    changed = [0.0]

    async def change() -> None:
        await asyncio.sleep(3)
        await asyncio.to_thread(running.apply, 1)
        changed[0] = time.monotonic()

    tokens = prompts(8, 64, 4)
    output_len = 1000
    answers = asyncio.run(streams(running.url, tokens, output_len, change))
    outlived = min(a.sent + a.ended for a in answers) - changed[0]
    running.wait("one engine", lambda: len(running.pids("Engine")) == 1 and running.live_engines() == 1)
    undisturbed = asyncio.run(streams(running.url, tokens, output_len))
    equal = sum(a.text == b.text for a, b in zip(answers, undisturbed, strict=True))
    drive.report(
        "2 → 1 replicas under 8 streams",
        {
            **Counter(map(outcome, answers)),
            "replicas that had streams": len({a.route.get("replica") for a in answers}),
            "shortest stream outlives the change by, s": outlived,
            "equal to the undisturbed run": equal,
        },
    )
    running.apply(2)
    running.wait("two live engines", lambda: running.live_engines() == 2)
    return equal == len(answers) and outlived > 30


PARTS: dict[str, Callable[[Service], bool]] = {
    "engine": engine,
    "gateway": gateway,
    "controller": controller,
    "scale_down": scale_down,
}


def main() -> None:
    parser = drive.arguments(__doc__ or "")
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parts = drive.choose(parser.parse_args().parts, PARTS)
    with service() as running:
        kept = {part: PARTS[part](running) for part in parts}
    if not all(kept.values()):
        raise SystemExit(f"promises not kept: {', '.join(part for part, good in kept.items() if not good)}")


if __name__ == "__main__":
    main()
