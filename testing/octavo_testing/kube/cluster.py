"""etcd, kube-apiserver, controller manager, scheduler, KubeRay and a fake node, as processes on loopback addresses.

``python -m octavo_testing.kube.cluster up`` leaves them running until ``down``; tests start one of their own.
"""

import argparse
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo_testing.kube import control_plane, kubeconfig
from octavo_testing.kube.kubectl import Kubectl, Refused
from octavo_testing.kube.tools import API_SERVER_TIER, ToolsMissing, ensure, kuberay_crds, why_not
from octavo_testing.processes import Launcher, PidFile, StartFailed, free_ports
from octavo_testing.waiting import eventually

KUBERAY_CRDS = ("rayclusters.ray.io", "rayjobs.ray.io", "rayservices.ray.io")
SERVICE_ADDRESSES = "10.96.0.0/16"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster. All its files are in ``folder``, which other users cannot read."""

    folder: Path
    server: str
    authority: bytes

    @property
    def admin(self) -> Path:
        return self.folder / "admin.kubeconfig"

    @property
    def audit_log(self) -> Path:
        return self.folder / "audit.log"

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(self.admin)

    def account(self, namespace: str, name: str) -> Path:
        """Write a kubeconfig with the token of a ServiceAccount, whose bearer has the rights that RBAC grants."""
        token = self.kubectl.within(namespace).run("create", "token", name, "--duration=24h").strip()
        path = self.folder / f"{namespace}.{name}.kubeconfig"
        return kubeconfig.write(path, self.server, self.authority, token, namespace)


@contextlib.contextmanager
def running(folder: Path, *, plugins: Sequence[str] = (), kuberay: bool = True) -> Iterator[Cluster]:
    """Run a cluster that ends with this block, and with this process."""
    try:
        yield start(folder, plugins=plugins, kuberay=kuberay)
    finally:
        PidFile(folder / "pids.json").stop()


def start(folder: Path, *, outlive: bool = False, plugins: Sequence[str] = (), kuberay: bool = True) -> Cluster:
    """Start everything in an empty private folder; raise ``ToolsMissing`` or ``StartFailed``.

    ``plugins`` are further admission plugins of the API server. Without ``kuberay``, its kinds are missing, too.
    """
    ensure(*API_SERVER_TIER)
    launcher = Launcher(folder, outlive)
    etcd_port, peer_port, api_port = free_ports(3)
    plane = control_plane.start(
        launcher,
        control_plane.Addresses("127.0.0.1", etcd_port, peer_port, api_port, SERVICE_ADDRESSES),
        plugins=plugins,
        # A loopback address is refused as an endpoint; nobody looks for the service "kubernetes" here.
        api_flags=("--endpoint-reconciler-type=none", "--authorization-mode=RBAC"),
        # The fake node sends no heartbeat.
        without=("node-lifecycle-controller",),
    )
    cluster = Cluster(folder, plane.server, plane.authority.certificate)
    node, _ = plane.identity("node", "fake-node", "system:masters")
    launcher.start("node", sys.executable, "-m", "octavo_testing.kube.fake_node", KUBECONFIG=str(node))
    if kuberay:
        start_kuberay(cluster, outlive=outlive)
    wait_for_accounts(cluster.kubectl)
    launcher.check()
    return cluster


def start_kuberay(cluster: Cluster, *, outlive: bool = False, within: tuple[str, ...] = ()) -> None:
    """Install KubeRay's kinds, wait for them, and start its manager, which exits without them."""
    kubectl = cluster.kubectl
    kubectl.run("apply", "--server-side", *(part for file in kuberay_crds() for part in ("-f", str(file))))
    kubectl.run("wait", "--for=condition=Established", "--timeout=60s", *(f"crd/{name}" for name in KUBERAY_CRDS))
    Launcher(cluster.folder, outlive, within).start(
        "kuberay",
        ensure("kuberay")["kuberay"],
        "--enable-leader-election=false",
        "--metrics-addr=127.0.0.1:0",
        "--health-probe-bind-address=127.0.0.1:0",
        KUBECONFIG=str(cluster.folder / "kuberay.kubeconfig"),
    )


def wait_for_accounts(kubectl: Kubectl) -> None:
    """Wait for the controller manager: no pod is admitted before its namespace has an account."""
    eventually("a ServiceAccount of the controller manager", lambda: "default" in kubectl.names("serviceaccounts"))


def home() -> Path:
    """Return the folder of the cluster of ``make kube``: one per user."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime, "octavo-kube") if runtime else Path(f"/tmp/octavo-kube-{os.getuid()}")


def up() -> None:
    folder = home()
    pids = PidFile(folder / "pids.json")
    known = pids.read()
    if known and all(process.running for process in known):
        print("The cluster runs already.")
    else:
        down(quiet=True)
        if reason := why_not(*API_SERVER_TIER):
            raise ToolsMissing(reason)
        began = time.monotonic()
        ensure(*API_SERVER_TIER)
        built = time.monotonic()
        folder.mkdir(mode=0o700)
        try:
            start(folder, outlive=True)
        except BaseException:
            pids.stop()
            print(f"It did not start; the logs are in {folder}. `make kube-down` removes them.", file=sys.stderr)
            raise
        if built - began > 1:
            print(f"Programs were built in {built - began:.0f} s.")
        print(f"The cluster was up in {time.monotonic() - built:.1f} s.")
    print(
        "Its node is a fake: it reports that pods run, but runs none. Logs and certificates are in"
        f" {folder}; `make kube-down` ends and removes everything.\n\n"
        f"export KUBECONFIG={folder / 'admin.kubeconfig'}\n"
        "helm install octavo helm/octavo --namespace octavo --create-namespace"
    )


def down(*, quiet: bool = False) -> None:
    folder = home()
    if not folder.exists():
        if not quiet:
            print("No cluster runs.")
        return
    if folder.stat().st_uid != os.getuid():
        raise StartFailed(f"{folder} belongs to another user: remove it")
    PidFile(folder / "pids.json").stop()
    shutil.rmtree(folder)
    if not quiet:
        print("The cluster is gone.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("up", "down"))
    try:
        {"up": up, "down": down}[parser.parse_args().command]()
    except (ToolsMissing, StartFailed, Refused, AssertionError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
