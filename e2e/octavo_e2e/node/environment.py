"""What the server's pods run here: this machine's programs and this checkout's environment, mounted read-only.

The image of the server is a skeleton: folders, links and a user. Pods mount the rest at the places where it lies on
this machine, by PersistentVolumeClaims, which Pod Security ``restricted`` allows where it forbids ``hostPath``.
"""

import json
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_e2e.node import images
from octavo_e2e.processes import StartFailed

CHECKOUT = Path(__file__).parents[3]
USER = 1000

_LINKS = ("bin", "sbin", "lib", "lib64", "lib32", "libx32")
_FILES = ("/etc/ld.so.cache", "/etc/debian_version", "/etc/os-release")


@dataclass(frozen=True, slots=True)
class Mounted:
    """A folder of this machine, at the same path in pods."""

    name: str
    path: Path


def mounted() -> list[Mounted]:
    """Raises ``StartFailed`` where users other than root may not read one of them."""
    python = Path(sys.base_prefix).resolve()
    environment = Path(sys.prefix).resolve()
    found = [Mounted("programs", Path("/usr")), Mounted("checkout", CHECKOUT)]
    for name, path in (("python", python), ("environment", environment)):
        if not any(path.is_relative_to(other.path) for other in found):
            found.append(Mounted(name, path))
    for one in found:
        for path in (one.path, *(python / "bin", environment / "bin")):
            if stat.S_IMODE(path.stat().st_mode) & 0o005 != 0o005:
                raise StartFailed(f"{path} is not readable by all users, and pods do not run as root: chmod o+rX it")
    return found


def write_image(path: Path, name: str) -> Path:
    layer = images.Layer()
    for folder in ("etc", "root", "home", "proc", "sys", "dev", "run", "var", "var/log", "usr", "opt"):
        layer.folder(folder)
    layer.folder("tmp", 0o1777)
    layer.folder("var/tmp", 0o1777)
    for folder in ("home/ray", "octavo", "octavo/cache"):
        layer.folder(folder, owner=USER)
    for link in _LINKS:
        if Path("/", link).is_symlink():
            layer.link(link, str(Path("/", link).readlink()))
    for made in _mount_points():
        layer.folder(made)
    layer.file("etc/passwd", f"root:x:0:0::/root:/bin/sh\nray:x:{USER}:{USER}::/home/ray:/bin/bash\n".encode())
    layer.file("etc/group", f"root:x:0:\nray:x:{USER}:\n".encode())
    layer.file("etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n")
    for file in map(Path, _FILES):
        if file.exists():
            layer.file(str(file).lstrip("/"), file.read_bytes())
    alternatives = Path("/etc/alternatives")
    if alternatives.is_dir():
        layer.folder("etc/alternatives")
        for link in sorted(alternatives.iterdir()):
            if link.is_symlink():
                layer.link(str(link).lstrip("/"), str(link.readlink()))
    path_variable = f"{sys.prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    variables = {
        "PATH": path_variable,
        "HOME": "/home/ray",
        "HF_HOME": "/octavo/cache",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "LANG": "C.UTF-8",
    }
    config = {
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "User": f"{USER}:{USER}",
        "WorkingDir": "/home/ray",
        "Cmd": ["bash"],
    }
    return images.write(path, name, layer, config)


def claims(namespace: str) -> list[dict[str, Any]]:
    """PersistentVolumes for this namespace alone, and its claims on them."""
    documents: list[dict[str, Any]] = []
    for one in mounted():
        claim, volume = _claim(one), f"{namespace}-{_claim(one)}"
        size = {"storage": "1Gi"}
        documents += [
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume},
                "spec": {
                    "accessModes": ["ReadOnlyMany"],
                    "capacity": size,
                    "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": claim}
                    | {"namespace": namespace},
                    "hostPath": {"path": str(one.path), "type": "Directory"},
                    "persistentVolumeReclaimPolicy": "Retain",
                    "storageClassName": "",
                },
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": claim, "namespace": namespace},
                "spec": {
                    "accessModes": ["ReadOnlyMany"],
                    "resources": {"requests": size},
                    "storageClassName": "",
                    "volumeName": volume,
                },
            },
        ]
    return documents


def pod_volumes() -> list[dict[str, Any]]:
    """For a pod, or a ServingDeployment, of a namespace that has the claims."""
    return [
        {"name": _claim(one), "persistentVolumeClaim": {"claimName": _claim(one), "readOnly": True}}
        for one in mounted()
    ]


def pod_mounts() -> list[dict[str, Any]]:
    return [{"name": _claim(one), "mountPath": str(one.path), "readOnly": True} for one in mounted()]


def for_people() -> str:
    """What belongs below ``spec.rayCluster.managed`` of a ServingDeployment, as text."""
    return json.dumps({"volumes": pod_volumes(), "volumeMounts": pod_mounts()}, indent=1)


def _claim(one: Mounted) -> str:
    return f"node-{one.name}"


def _mount_points() -> Iterator[str]:
    """Every folder on the way to a mount, for all to pass: runc would make them too, but for root alone."""
    seen = {"usr", "root", "home", "opt", "var", "tmp"}
    for one in mounted():
        for path in (*reversed(one.path.parents), one.path):
            name = str(path).lstrip("/")
            if name and name not in seen:
                seen.add(name)
                yield name
