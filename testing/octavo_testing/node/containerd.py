"""containerd with runc, and the network plugins that it calls; all of its folders lie in the node's."""

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from octavo_testing.kube.tools import CNI_PLUGINS, ensure
from octavo_testing.node import addresses
from octavo_testing.node.namespaces import Namespaces
from octavo_testing.processes import Launcher, StartFailed

PAUSE = "registry.k8s.io/pause:octavo"
SOCKET = "/run/containerd/containerd.sock"
"""In the node's own /run."""

_CONFIG = """\
version = 3
root = "{folder}/containerd"
state = "/run/containerd"

[grpc]
address = "{socket}"

[plugins.'io.containerd.nri.v1.nri']
disable = true

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{pause}"

[plugins.'io.containerd.cri.v1.runtime']
# Lower than this process's own cannot be set everywhere.
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{folder}/cni/bin"]
conf_dir = "{folder}/cni/conf"

[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = "runc"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false
"""


@dataclass(frozen=True, slots=True)
class Containerd:
    namespaces: Namespaces
    ctr: Path

    def load(self, archives: Iterable[Path]) -> None:
        """Images of OCI archives, by the names that these give them."""
        for archive in archives:
            self._run("images", "import", "--all-platforms", "--local", str(archive))

    def images(self) -> set[str]:
        return set(self._run("images", "list", "--quiet").split())

    def _run(self, *arguments: str) -> str:
        return self.namespaces.run(self.ctr, "--address", SOCKET, "--namespace", "k8s.io", *arguments)


def start(launcher: Launcher, namespaces: Namespaces) -> Containerd:
    programs = ensure("containerd", "containerd-shim-runc-v2", "ctr", *CNI_PLUGINS)
    folder = launcher.folder
    _write_network(folder, programs)
    config = folder / "containerd.toml"
    runc = shutil.which("runc")
    config.write_text(_CONFIG.format(folder=folder, socket=SOCKET, pause=PAUSE, runc=runc))
    process = launcher.start(
        "containerd",
        # It looks for the shim in PATH.
        "env",
        f"PATH={programs['containerd-shim-runc-v2'].parent}:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin",
        programs["containerd"],
        f"--config={config}",
    )
    containerd = Containerd(namespaces, programs["ctr"])
    process.wait("an answer", lambda: _answers(containerd), 30)
    return containerd


def _write_network(folder: Path, programs: dict[str, Path]) -> None:
    plugins, config = folder / "cni" / "bin", folder / "cni" / "conf"
    plugins.mkdir(parents=True)
    config.mkdir()
    for name in CNI_PLUGINS:
        (plugins / name).symlink_to(programs[name])
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": addresses.PODS}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(folder / "cni" / "addresses"),
        },
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    document = {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, ports]}
    (config / "10-pods.conflist").write_text(json.dumps(document, indent=1))


def _answers(containerd: Containerd) -> bool:
    try:
        containerd.images()
    except StartFailed:
        return False
    return True
