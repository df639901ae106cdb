"""etcd, API server, controller manager and scheduler: the same in every cluster of the tests."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo_testing.certificates import Authority, Pair, service_account_keys
from octavo_testing.kube import kubeconfig
from octavo_testing.kube.audit import POLICY
from octavo_testing.kube.tools import ensure
from octavo_testing.processes import Launcher
from octavo_testing.web import answers

_NO_CLOUD = ("node-ipam-controller", "node-route-controller", "cloud-node-lifecycle-controller")


@dataclass(frozen=True, slots=True)
class Addresses:
    """``host`` is the address that all of them listen on, ``services`` the network of ClusterIPs."""

    host: str
    etcd_port: int
    peer_port: int
    api_port: int
    services: str

    @property
    def server(self) -> str:
        return f"https://{self.host}:{self.api_port}"


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """Address and authority, from which further clients of the API server get their credentials."""

    folder: Path
    server: str
    authority: Authority

    def identity(self, name: str, user: str, *groups: str) -> tuple[Path, Pair]:
        """Write a kubeconfig named ``name``, and return it with its client certificate."""
        pair = self.authority.client(user, *groups)
        return self.write(name, pair), pair

    def write(self, name: str, pair: Pair) -> Path:
        path = self.folder / f"{name}.kubeconfig"
        return kubeconfig.write(path, self.server, self.authority.certificate, pair)


def start(
    launcher: Launcher,
    addresses: Addresses,
    *,
    plugins: Sequence[str] = (),
    names: Sequence[str] = (),
    api_flags: Sequence[str] = (),
    without: Sequence[str] = (),
) -> ControlPlane:
    """Start all four, and return once the API server is ready; raise ``StartFailed``.

    ``plugins`` are further admission plugins, ``names`` further addresses in the API server's certificate, and
    ``without`` names controllers to leave out. The files
    ``admin.crt`` and ``admin.key`` are those of a client that may do everything, ``ca.crt`` the authority's.
    """
    folder = launcher.folder
    folder.chmod(0o700)
    programs = ensure("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
    plane = ControlPlane(folder, addresses.server, Authority())
    ca = plane.authority.write(folder)
    certificate, key = plane.authority.server(addresses.host, *names).write(folder, "server")
    public, private = service_account_keys(folder)
    _, admin = plane.identity("admin", "admin", "system:masters")
    admin.write(folder, "admin")
    controllers, _ = plane.identity("controller-manager", "system:kube-controller-manager")
    scheduler, _ = plane.identity("scheduler", "system:kube-scheduler")
    plane.identity("kuberay", "kuberay", "system:masters")

    etcd_url = f"https://{addresses.host}:{addresses.etcd_port}"
    peer_url = f"https://{addresses.host}:{addresses.peer_port}"
    launcher.start(
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
    api = launcher.start(
        "kube-apiserver",
        programs["kube-apiserver"],
        f"--etcd-servers={etcd_url}",
        f"--etcd-cafile={ca}",
        f"--etcd-certfile={certificate}",
        f"--etcd-keyfile={key}",
        f"--bind-address={addresses.host}",
        f"--advertise-address={addresses.host}",
        f"--secure-port={addresses.api_port}",
        f"--tls-cert-file={certificate}",
        f"--tls-private-key-file={key}",
        f"--client-ca-file={ca}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={public}",
        f"--service-account-signing-key-file={private}",
        f"--service-cluster-ip-range={addresses.services}",
        "--allow-privileged=true",
        f"--audit-policy-file={policy}",
        f"--audit-log-path={folder / 'audit.log'}",
        "--audit-log-mode=blocking",
        f"--enable-admission-plugins={','.join(plugins)}",
        *api_flags,
    )
    api.wait("/readyz", lambda: _answers(f"{plane.server}/readyz", ca, folder))
    launcher.start(
        "kube-controller-manager",
        programs["kube-controller-manager"],
        f"--kubeconfig={controllers}",
        f"--service-account-private-key-file={private}",
        f"--root-ca-file={ca}",
        "--use-service-account-credentials",
        f"--controllers={','.join(('*', *(f'-{name}' for name in (*_NO_CLOUD, *without))))}",
        "--leader-elect=false",
        "--secure-port=0",
    )
    launcher.start(
        "kube-scheduler",
        programs["kube-scheduler"],
        f"--kubeconfig={scheduler}",
        "--leader-elect=false",
        "--secure-port=0",
    )
    return plane


def _mutual_tls(ca: Path, certificate: Path, key: Path) -> tuple[str, ...]:
    return ("client-cert-auth", f"trusted-ca-file={ca}", f"cert-file={certificate}", f"key-file={key}")


def _answers(url: str, ca: Path, folder: Path) -> bool:
    context = ssl.create_default_context(cafile=str(ca))
    context.load_cert_chain(folder / "admin.crt", folder / "admin.key")
    return answers(url, context)
