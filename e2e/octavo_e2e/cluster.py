"""etcd, kube-apiserver, controller manager, scheduler, KubeRay and a fake node, as processes on loopback addresses.

``python -m octavo_e2e.cluster up`` leaves them running until ``down``; tests start one of their own.
"""

import argparse
import contextlib
import os
import shutil
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo_e2e import kubeconfig
from octavo_e2e.audit import POLICY
from octavo_e2e.certificates import Authority, Pair, service_account_keys
from octavo_e2e.kubectl import Kubectl, Refused
from octavo_e2e.processes import PidFile, Process, StartFailed, free_ports
from octavo_e2e.tools import API_SERVER_TIER, ToolsMissing, ensure, kuberay_crds, why_not

KUBERAY_CRDS = ("rayclusters.ray.io", "rayjobs.ray.io", "rayservices.ray.io")
SERVICE_ADDRESSES = "10.96.0.0/16"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster. Everything of it lies in ``folder``, which nobody else can read."""

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
        """A kubeconfig with the token of a ServiceAccount: its bearer may do what RBAC gives it, nothing else."""
        token = self.kubectl.within(namespace).run("create", "token", name, "--duration=24h").strip()
        path = self.folder / f"{namespace}.{name}.kubeconfig"
        return kubeconfig.write(path, self.server, self.authority, token, namespace)


@contextlib.contextmanager
def running(folder: Path, *, plugins: Sequence[str] = (), kuberay: bool = True) -> Iterator[Cluster]:
    """A cluster that ends with this block, and with this process."""
    try:
        yield start(folder, plugins=plugins, kuberay=kuberay)
    finally:
        PidFile(folder / "pids.json").stop()


def start(folder: Path, *, outlive: bool = False, plugins: Sequence[str] = (), kuberay: bool = True) -> Cluster:
    """Starts everything in an empty private folder; raises ``ToolsMissing`` or ``StartFailed``.

    ``plugins`` are further admission plugins of the API server. Without ``kuberay`` its kinds are not there either.
    """
    programs = ensure(*API_SERVER_TIER)
    folder.chmod(0o700)
    pids = PidFile(folder / "pids.json")

    def launch(name: str, *command: str | Path, **environment: str) -> Process:
        process = Process.start(name, command, folder, environment=environment, outlive=outlive)
        pids.add(process)
        return process

    etcd_port, peer_port, api_port = free_ports(3)
    authority = Authority()
    ca = authority.write(folder)
    certificate, key = authority.server("127.0.0.1").write(folder, "server")
    public, private = service_account_keys(folder)
    server = f"https://127.0.0.1:{api_port}"
    cluster = Cluster(folder, server, authority.certificate)

    def identity(name: str, user: str, *groups: str) -> tuple[Path, Pair]:
        pair = authority.client(user, *groups)
        return kubeconfig.write(folder / f"{name}.kubeconfig", server, authority.certificate, pair), pair

    _, admin = identity("admin", "admin", "system:masters")
    controllers, _ = identity("controller-manager", "system:kube-controller-manager")
    scheduler, _ = identity("scheduler", "system:kube-scheduler")
    identity("kuberay", "kuberay", "system:masters")
    node, _ = identity("node", "fake-node", "system:masters")

    etcd_url, peer_url = f"https://127.0.0.1:{etcd_port}", f"https://127.0.0.1:{peer_port}"
    launch(
        "etcd",
        programs["etcd"],
        f"--data-dir={folder / 'etcd'}",
        "--name=e2e",
        f"--listen-client-urls={etcd_url}",
        f"--advertise-client-urls={etcd_url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=e2e={peer_url}",
        *(f"--{prefix}{option}" for prefix in ("", "peer-") for option in _mutual_tls(ca, certificate, key)),
        "--unsafe-no-fsync",
        "--log-level=warn",
    )
    policy = folder / "audit-policy.yaml"
    policy.write_text(POLICY)
    api = launch(
        "kube-apiserver",
        programs["kube-apiserver"],
        f"--etcd-servers={etcd_url}",
        f"--etcd-cafile={ca}",
        f"--etcd-certfile={certificate}",
        f"--etcd-keyfile={key}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        # A loopback address is refused as an endpoint; nobody looks for the service "kubernetes" here.
        "--endpoint-reconciler-type=none",
        f"--secure-port={api_port}",
        f"--tls-cert-file={certificate}",
        f"--tls-private-key-file={key}",
        f"--client-ca-file={ca}",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={public}",
        f"--service-account-signing-key-file={private}",
        f"--service-cluster-ip-range={SERVICE_ADDRESSES}",
        "--allow-privileged=true",
        f"--audit-policy-file={policy}",
        f"--audit-log-path={cluster.audit_log}",
        "--audit-log-mode=blocking",
        f"--enable-admission-plugins={','.join(plugins)}",
    )
    api.wait("/readyz", lambda: _answers(f"{server}/readyz", ca, admin, folder))
    launch(
        "kube-controller-manager",
        programs["kube-controller-manager"],
        f"--kubeconfig={controllers}",
        f"--service-account-private-key-file={private}",
        f"--root-ca-file={ca}",
        "--use-service-account-credentials",
        "--controllers=*,-node-ipam-controller,-node-route-controller,-cloud-node-lifecycle-controller",
        "--leader-elect=false",
        "--secure-port=0",
    )
    launch(
        "kube-scheduler",
        programs["kube-scheduler"],
        f"--kubeconfig={scheduler}",
        "--leader-elect=false",
        "--secure-port=0",
    )
    launch(
        "node",
        sys.executable,
        "-m",
        "octavo_e2e.fake_node",
        KUBECONFIG=str(node),
        PYTHONPATH=str(Path(__file__).parents[1]),
    )
    if kuberay:
        start_kuberay(cluster, outlive=outlive)
    _wait_for_accounts(cluster.kubectl)
    for process in pids.read():
        if not process.running:
            raise StartFailed(f"{process.name} ended at once\n{process.tail()}")
    return cluster


def start_kuberay(cluster: Cluster, *, outlive: bool = False) -> None:
    """Its manager ends where its kinds are not served yet, so they are waited for first."""
    kubectl = cluster.kubectl
    kubectl.run("apply", "--server-side", *(part for file in kuberay_crds() for part in ("-f", str(file))))
    kubectl.run("wait", "--for=condition=Established", "--timeout=60s", *(f"crd/{name}" for name in KUBERAY_CRDS))
    process = Process.start(
        "kuberay",
        [
            ensure("kuberay")["kuberay"],
            "--enable-leader-election=false",
            "--metrics-addr=127.0.0.1:0",
            "--health-probe-bind-address=127.0.0.1:0",
        ],
        cluster.folder,
        environment={"KUBECONFIG": str(cluster.folder / "kuberay.kubeconfig")},
        outlive=outlive,
    )
    PidFile(cluster.folder / "pids.json").add(process)


def _mutual_tls(ca: Path, certificate: Path, key: Path) -> tuple[str, ...]:
    return ("client-cert-auth", f"trusted-ca-file={ca}", f"cert-file={certificate}", f"key-file={key}")


def _answers(url: str, ca: Path, client: Pair, folder: Path) -> bool:
    context = ssl.create_default_context(cafile=str(ca))
    context.load_cert_chain(*client.write(folder, "admin"))
    try:
        with urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        ).open(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _wait_for_accounts(kubectl: Kubectl) -> None:
    """Until the controller manager works: no pod is admitted before its namespace has an account."""
    deadline = time.monotonic() + 60
    while "default" not in kubectl.names("serviceaccounts"):
        if time.monotonic() > deadline:
            raise StartFailed("the controller manager made no ServiceAccount in 60 s")
        time.sleep(0.05)


def home() -> Path:
    """Where ``make kube`` keeps its cluster: one per user."""
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
        "Its node is a fake: pods are said to run, and do not. Logs and certificates are in"
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
    except (ToolsMissing, StartFailed, Refused) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
