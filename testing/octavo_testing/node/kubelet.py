"""kubelet, kube-proxy and CoreDNS: what makes a machine a node of the cluster."""

import json
from pathlib import Path

from octavo_testing.kube.control_plane import ControlPlane
from octavo_testing.kube.kubectl import Kubectl
from octavo_testing.kube.tools import ensure
from octavo_testing.node import addresses, cgroups, containerd
from octavo_testing.processes import Launcher, Process

NAME = "octavo-node"

_COREFILE = """\
.:53 {{
    bind {node}
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig} e2e
        pods insecure
        ttl 5
    }}
}}
"""


def start(launcher: Launcher, plane: ControlPlane) -> None:
    """Returns when the node is ready."""
    folder = launcher.folder
    kubelet = _start_kubelet(launcher, plane)
    proxy, _ = plane.identity("kube-proxy", "system:kube-proxy")
    launcher.start(
        "kube-proxy",
        ensure("kube-proxy")["kube-proxy"],
        f"--kubeconfig={proxy}",
        "--proxy-mode=nftables",
        f"--hostname-override={NAME}",
        # These are of the whole machine.
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
    )
    names, _ = plane.identity("coredns", "coredns", "system:masters")
    corefile = folder / "Corefile"
    corefile.write_text(_COREFILE.format(node=addresses.NODE, kubeconfig=names))
    launcher.start("coredns", ensure("coredns")["coredns"], f"-conf={corefile}")
    kubectl = Kubectl(folder / "admin.kubeconfig")
    kubelet.wait("a Ready node", lambda: _ready(kubectl), 60)


def _start_kubelet(launcher: Launcher, plane: ControlPlane) -> Process:
    folder = launcher.folder
    pair = plane.authority.node(NAME, addresses.NODE)
    certificate, key = pair.write(folder, "kubelet")
    kubeconfig = plane.write("kubelet", pair)
    resolver = folder / "resolv.conf"
    resolver.write_text(f"nameserver {addresses.NODE}\n")
    config = folder / "kubelet.json"
    config.write_text(json.dumps(_config(folder, certificate, key, resolver), indent=1))
    return launcher.start(
        "kubelet",
        ensure("kubelet")["kubelet"],
        f"--config={config}",
        f"--kubeconfig={kubeconfig}",
        f"--hostname-override={NAME}",
        f"--node-ip={addresses.NODE}",
        f"--root-dir={folder / 'kubelet'}",
    )


def _config(folder: Path, certificate: Path, key: Path, resolver: Path) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": addresses.NODE,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(folder / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(certificate),
        "tlsPrivateKeyFile": str(key),
        "containerRuntimeEndpoint": f"unix://{containerd.SOCKET}",
        "clusterDomain": "cluster.local",
        "clusterDNS": [addresses.NODE],
        "resolvConf": str(resolver),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroups.NAME}",
        "enforceNodeAllocatable": ["pods"],
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "localStorageCapacityIsolation": False,
        "podLogsDir": str(folder / "pods"),
        "staticPodPath": "",
        "volumePluginDir": str(folder / "volume-plugins"),
        "healthzPort": 0,
        # The disk is the machine's: how full it is says nothing of the node.
        "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
        "serializeImagePulls": False,
    }


def _ready(kubectl: Kubectl) -> bool:
    return kubectl.condition("node", NAME, "Ready").get("status") == "True"
