"""The operator under many deployments: a real API server, and a Ray Serve that only pretends.

    .venv/bin/python benchmarks/many_deployments.py --deployments 500 --cycles 1000

Prints the CPU milliseconds of one look at a deployment, the operator's memory, and its CPU time at rest. It also shows
whether memory stays flat while deployments come and go. Only the operator's own process is counted.
"""

# ruff: noqa: E402
import argparse
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]

import yaml

from octavo_testing.kube import cluster as clusters
from octavo_testing.kube.documents import deployment
from octavo_testing.kube.kubectl import Kubectl
from octavo_testing.kube.operator import Installation, Operator
from octavo_testing.kube.serve_stub import Stub, running_stub
from octavo_testing.processes import cpu_seconds, resident_bytes
from octavo_testing.waiting import eventually

NAMESPACE = "many"
_BATCH = 50


def create(kubectl: Kubectl, stub: Stub, names: list[str]) -> None:
    urls = itertools.cycle(stub.urls)
    documents = [deployment(name, rayCluster={"external": {"dashboardURL": next(urls)}}) for name in names]
    kubectl.run("create", "-f", "-", stdin=yaml.safe_dump_all(documents), timeout_s=600)


def ready(kubectl: Kubectl) -> int:
    """Number of deployments that are ready; one small column of the server's own table."""
    column = 'custom-columns=R:.status.conditions[?(@.type=="Ready")].status'
    return kubectl.run("get", "sdep", "--no-headers", "-o", column).split().count("True")


def wait_ready(kubectl: Kubectl, count: int) -> None:
    eventually(f"{count} ready", lambda: ready(kubectl) == count, timeout_s=900, every_s=0.5)


class Meter:
    """CPU seconds and looks of the operator, from now on."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._cpu, self._looks, self._began = self._read()

    def _read(self) -> tuple[float, float, float]:
        looks = self._operator.metric("octavo_operator_reconcile_total")
        return cpu_seconds(self._operator.process.pid), looks, time.monotonic()

    def say(self, what: str) -> None:
        cpu, looks, now = (after - before for after, before in zip(self._read(), self._at, strict=True))
        each = f"{cpu / looks * 1000:.1f} ms of CPU each" if looks else "no look"
        rss = resident_bytes(self._operator.process.pid) / 2**20
        print(
            f"{what}: {now:.1f} s, {looks:.0f} looks, {each}, {cpu / now * 100:.1f} % of one CPU, RSS {rss:.0f} MiB",
            flush=True,
        )

    @property
    def _at(self) -> tuple[float, float, float]:
        return self._cpu, self._looks, self._began


def measured(operator: Operator, what: str, act: Callable[[], object]) -> None:
    meter = Meter(operator)
    act()
    meter.say(what)


def many(kubectl: Kubectl, stub: Stub, operator: Operator, count: int, idle_s: float) -> None:
    def all_ready() -> None:
        create(kubectl, stub, [f"d{number}" for number in range(count)])
        wait_ready(kubectl, count)

    measured(operator, f"{count} created and ready", all_ready)
    time.sleep(10)
    measured(operator, f"{count} at rest", lambda: time.sleep(idle_s))

    def edited() -> None:
        change = '--patch={"spec":{"engine":{"maxNumQueuedReqs":9}}}'
        for start in range(0, count, _BATCH):
            names = [f"d{number}" for number in range(start, min(start + _BATCH, count))]
            kubectl.run("patch", "sdep", *names, "--type=merge", change, timeout_s=600)
        condition = 'custom-columns=G:.metadata.generation,R:.status.conditions[?(@.type=="Ready")]'
        eventually(
            "all ready again",
            lambda: kubectl.run("get", "sdep", "--no-headers", "-o", condition).count("observedGeneration:2") == count,
            timeout_s=900,
            every_s=1,
        )

    measured(operator, f"{count} edited and ready again", edited)

    def deleted() -> None:
        kubectl.run("delete", "sdep", "--all", "--timeout=900s", timeout_s=910)

    measured(operator, f"{count} deleted", deleted)


def churn(kubectl: Kubectl, stub: Stub, operator: Operator, cycles: int) -> None:
    """Creates, waits until ready and deletes; memory is read at equal states, when nothing is left."""
    sizes = []
    for start in range(0, cycles, _BATCH):
        names = [f"c{start + number}" for number in range(min(_BATCH, cycles - start))]
        create(kubectl, stub, names)
        wait_ready(kubectl, len(names))
        kubectl.run("delete", "sdep", "--all", "--timeout=600s", timeout_s=610)
        sizes.append(resident_bytes(operator.process.pid) / 2**20)
        print(f"  {start + len(names)} cycles: RSS {sizes[-1]:.1f} MiB", flush=True)
    half = len(sizes) // 2
    if half:
        print(f"RSS over the second half of {cycles} create/delete cycles: {sizes[-1] - sizes[half]:+.1f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deployments", type=int, default=500)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--idle-seconds", type=float, default=120)
    parser.add_argument("--rays", type=int, default=50, help="external Ray clusters that they are spread over")
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="octavo-bench-") as folder, clusters.running(Path(folder)) as cluster:
        cluster.kubectl.run("create", "namespace", NAMESPACE)
        kubectl = cluster.kubectl.within(NAMESPACE)
        installation = Installation.make(cluster)
        with (
            running_stub(Path(folder), speed=200, hosts=options.rays) as stub,
            installation.operator(f"--workers={options.workers}", "--log-level=warning") as operator,
        ):
            time.sleep(5)
            measured(operator, "nothing there", lambda: time.sleep(20))
            many(kubectl, stub, operator, options.deployments, options.idle_seconds)
            churn(kubectl, stub, operator, options.cycles)


if __name__ == "__main__":
    main()
