"""A node, its control plane and KubeRay: up, and down again without a trace. One on a machine."""

import contextlib
import fcntl
import functools
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from octavo_testing.kube import cluster as clusters
from octavo_testing.kube import control_plane
from octavo_testing.kube.cluster import Cluster
from octavo_testing.kube.tools import NODE_TIER, ensure
from octavo_testing.node import addresses, build, cgroups, containerd, environment, images, kubelet, namespaces
from octavo_testing.node.environment import CHECKOUT
from octavo_testing.node.namespaces import Namespaces
from octavo_testing.processes import Launcher, Process, StartFailed

HOME = Path("/var/tmp/octavo-node")
"""Of the one node of this machine. On a disk, because images are unpacked in it."""


@dataclass(frozen=True, slots=True)
class Node:
    """A running one. From this machine its pods and ClusterIPs are reached as they are, names are not resolved."""

    cluster: Cluster
    namespaces: Namespaces

    def prepare(self, namespace: str) -> None:
        """Create a namespace with Pod Security ``restricted`` and claims on the environment."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted", **environment.LABEL}
        made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}
        if self.cluster.kubectl.find("namespace", namespace) is None:
            self._delete_volumes(namespace)  # one of the same name had them, and nobody else may bind them
        self.cluster.kubectl.within("").apply(made, *environment.claims(namespace))

    def forget(self, namespace: str) -> None:
        """Removes it with everything in it, and its volumes.

        Kubernetes looks again at what is left after half the pods' time to end: minutes, where one serves still.
        """
        kubectl = self.cluster.kubectl
        kubectl.run("delete", "namespace", namespace, "--ignore-not-found", "--timeout=400s", timeout_s=410)
        self._delete_volumes(namespace)

    def _delete_volumes(self, namespace: str) -> None:
        ((label, value),) = environment.volumes_of(namespace).items()
        self.cluster.kubectl.run("delete", "persistentvolume", f"--selector={label}={value}")


class Held(Exception):
    """Another checkout has the machine's node, or starts or ends it now; the message names it."""


def start(*, outlive: bool = False) -> Node:
    """Start a node without our images; raise ``ToolsMissing``, ``StartFailed`` or ``Held``."""
    ensure(*NODE_TIER)
    with _claim() as folder:
        if _running(folder) is not None:
            raise Held(f"a node runs already, of {_holder(folder)}: `make node-down` there ends it")
        _clear(folder)
        addresses.refuse_overlap()
        (folder / "holder.json").write_text(json.dumps({"checkout": str(CHECKOUT)}))
        try:
            return _start(folder, outlive=outlive)
        except BaseException:
            # Its logs stay, until the next start or end.
            _end(folder)
            raise


def find() -> Node | None:
    """Return this checkout's node, or None; raise ``Held`` if another checkout has one."""
    with _claim() as folder:
        held = _running(folder)
        if held is not None and _holder(folder) != str(CHECKOUT):
            raise Held(f"this machine's node belongs to {_holder(folder)}: `make node-down` there ends it")
        if held is None:
            if not any(folder.iterdir()):
                folder.rmdir()
            return None
        return Node(_cluster(folder), held)


def stop() -> bool:
    """Stop the node, also after a crash, and remove its files; return whether there was anything."""
    if not HOME.exists():
        return False
    with _claim() as folder:
        if _running(folder) is not None and _holder(folder) != str(CHECKOUT):
            raise Held(f"this machine's node belongs to {_holder(folder)}: `make node-down` there ends it")
        _clear(folder)
        folder.rmdir()
    return True


@contextlib.contextmanager
def borrowed() -> Iterator[Node]:
    """A node with our images: this checkout's, if ``make node`` started one, else one that ends with this block."""
    found = find()
    try:
        node = found or start()
        load(node, archives())
        yield node
    finally:
        if found is None:
            stop()


def archives() -> list[Path]:
    """The images of operator and server, under the names that the chart gives them."""
    return [operator_image(), environment.write_image(HOME / "server.tar", chart_image("serverImage"))]


@functools.cache
def operator_image() -> Path:
    """The operator's image, built once in this process from what the checkout has; minutes where nothing is cached."""
    return build.build(CHECKOUT / "docker" / "operator.Dockerfile", CHECKOUT, chart_image("image"))


def chart_image(value: str) -> str:
    """The image that the chart's ``image`` or ``serverImage`` names."""
    image = yaml.safe_load((CHECKOUT / "helm" / "octavo" / "values.yaml").read_text())[value]
    version = yaml.safe_load((CHECKOUT / "helm" / "octavo" / "Chart.yaml").read_text())["appVersion"]
    return f"{image['repository']}:{image['tag'] or version}"


def _start(folder: Path, *, outlive: bool) -> Node:
    outside = Launcher(folder, outlive)
    inside = namespaces.make(outside)
    addresses.connect(inside.init)
    cgroups.make()
    launcher = Launcher(folder, outlive, ("env", "NO_PROXY=*", "no_proxy=*", *inside.enter))
    runtime = containerd.start(launcher, inside)
    plane = control_plane.start(
        launcher,
        control_plane.Addresses(addresses.NODE, 2379, 2380, 6443, addresses.SERVICES),
        plugins=["NodeRestriction"],
        names=[addresses.API_SERVICE],
        api_flags=[
            "--authorization-mode=Node,RBAC",
            f"--kubelet-client-certificate={folder / 'admin.crt'}",
            f"--kubelet-client-key={folder / 'admin.key'}",
            f"--kubelet-certificate-authority={folder / 'ca.crt'}",
            # Nobody resolves the node's name.
            "--kubelet-preferred-address-types=InternalIP",
        ],
    )
    runtime.load([images.write_pause(folder / "pause.tar", containerd.PAUSE, ensure("pause")["pause"])])
    kubelet.start(launcher, plane)
    cluster = _cluster(folder)
    clusters.start_kuberay(cluster, outlive=outlive, within=launcher.within)
    clusters.wait_for_accounts(cluster.kubectl)
    cluster.kubectl.within("").apply(*environment.policy(chart_image("serverImage")))
    launcher.check()
    return Node(cluster, inside)


def load(node: Node, paths: list[Path]) -> None:
    containerd.Containerd(node.namespaces, ensure("ctr")["ctr"]).load(paths)


def _cluster(folder: Path) -> Cluster:
    return Cluster(folder, f"https://{addresses.NODE}:6443", (folder / "ca.crt").read_bytes())


def _running(folder: Path) -> Namespaces | None:
    holder = _namespaces_process(folder)
    return None if holder is None else namespaces.of(holder)


def _namespaces_process(folder: Path) -> Process | None:
    return next((p for p in Launcher(folder).pids.read() if p.name == "namespaces"), None)


def _holder(folder: Path) -> str:
    return str(json.loads((folder / "holder.json").read_text())["checkout"])


def _end(folder: Path) -> None:
    if (holder := _namespaces_process(folder)) is not None:
        namespaces.end(holder)
    Launcher(folder).pids.stop()


def _clear(folder: Path) -> None:
    """Ends what runs of it and empties its folder; raises ``StartFailed`` where something stays."""
    _end(folder)
    addresses.disconnect()
    if left := cgroups.remove():
        raise StartFailed(f"cgroups that cannot be removed: {', '.join(map(str, left))}")
    if mounts := _mounts_in(folder):
        # Never remove through a mount.
        raise StartFailed(f"mounted in {folder}: {', '.join(mounts)}")
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _mounts_in(folder: Path) -> list[str]:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if Path(point).is_relative_to(folder)]


@contextlib.contextmanager
def _claim() -> Iterator[Path]:
    """The folder, for one process at a time; raises ``Held`` where another starts or ends a node now."""
    while True:
        HOME.mkdir(mode=0o700, exist_ok=True)
        try:
            # Everybody may make files beside it: a link would have another folder emptied.
            descriptor = os.open(HOME, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            raise Held(f"{HOME} cannot be used: {error.strerror}; remove it") from None
        try:
            if os.fstat(descriptor).st_uid != os.getuid():
                raise Held(f"{HOME} belongs to another user: remove it")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it may have removed it meanwhile.
            if HOME.exists() and os.stat(HOME).st_ino == os.fstat(descriptor).st_ino:
                yield HOME
                return
        except BlockingIOError:
            raise Held(f"another process starts or ends a node in {HOME} now: wait for it") from None
        finally:
            os.close(descriptor)
        time.sleep(0.05)
