"""Environment of the server's pods: this machine's programs and this checkout, mounted.

The image of the server is a skeleton: folders, links and a user. Pods mount the rest, read-only, at the places where
it lies on this machine, by PersistentVolumeClaims: Pod Security ``restricted`` allows them and forbids ``hostPath``.

An admission policy adds the mounts to pods of that image, and lowers their requests. So documents for larger nodes run
on this one unchanged.
"""

import json
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_testing.kube.tools import cache
from octavo_testing.node import images
from octavo_testing.processes import StartFailed

CHECKOUT = Path(__file__).parents[3]
USER = 1000
LABEL = {"octavo.dev/environment": "mounted"}
"""Of the namespaces whose pods get it."""

REQUESTS = {"cpu": "100m", "memory": "256Mi"}
"""Of each container: a head, two gateways and four engines fit two processors and what else runs there."""

_ADMISSION = "admissionregistration.k8s.io/v1"
_HOME = "/home/ray"
_KERNELS = "/octavo/cache/octavo"

_LINKS = ("bin", "sbin", "lib", "lib64", "lib32", "libx32")
_FILES = ("/etc/ld.so.cache", "/etc/debian_version", "/etc/os-release")


@dataclass(frozen=True, slots=True)
class Mounted:
    """A folder of this machine, and where pods have it; at the same path where nothing else is said."""

    name: str
    path: Path
    elsewhere: str = ""
    writable: bool = False

    @property
    def at(self) -> str:
        return self.elsewhere or str(self.path)

    @property
    def mode(self) -> str:
        return "ReadWriteMany" if self.writable else "ReadOnlyMany"


def mounted() -> list[Mounted]:
    """Return the mounted folders; raise ``StartFailed`` if users other than root may not read one of them."""
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
    return [*found, Mounted("kernels", kernels_folder(), _KERNELS, writable=True)]


def kernels_folder() -> Path:
    """Return the folder of compiled kernels. It outlives the node: each engine would compile them for a minute."""
    folder = cache() / "e2e-kernels"
    folder.mkdir(parents=True, exist_ok=True)
    os.chown(folder, USER, USER)
    return folder


def write_image(path: Path, name: str) -> Path:
    layer = images.Layer()
    for folder in ("etc", "root", "home", "proc", "sys", "dev", "run", "var", "var/log", "usr", "opt"):
        layer.folder(folder)
    layer.folder("tmp", 0o1777)
    layer.folder("var/tmp", 0o1777)
    for folder in ("home/ray", "octavo", "octavo/cache", "octavo/cache/octavo"):
        layer.folder(folder, owner=USER)
    for link in _LINKS:
        if Path("/", link).is_symlink():
            layer.link(link, str(Path("/", link).readlink()))
    for made in _mount_points():
        layer.folder(made)
    layer.file("etc/passwd", f"root:x:0:0::/root:/bin/sh\nray:x:{USER}:{USER}::{_HOME}:/bin/bash\n".encode())
    layer.file("etc/group", f"root:x:0:\nray:x:{USER}:\n".encode())
    layer.file("etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n")
    for file in map(Path, _FILES):
        if file.exists():
            layer.file(str(file).lstrip("/"), file.read_bytes())
    alternatives = Path("/etc/alternatives")
    if alternatives.is_dir():
        layer.folder("etc/alternatives")
        for entry in sorted(alternatives.iterdir()):
            if entry.is_symlink():
                layer.link(str(entry).lstrip("/"), str(entry.readlink()))
    path_variable = f"{sys.prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    variables = {
        "PATH": path_variable,
        "HOME": _HOME,
        "HF_HOME": "/octavo/cache",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "LANG": "C.UTF-8",
    }
    config = {
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "User": f"{USER}:{USER}",
        "WorkingDir": _HOME,
        "Cmd": ["bash"],
    }
    return images.write(path, name, layer, config)


def claims(namespace: str) -> list[dict[str, Any]]:
    return [document for one in mounted() for document in claim(namespace, _claim(one), one.path, one.mode)]


def claim(namespace: str, name: str, path: Path, mode: str = "ReadWriteMany") -> list[dict[str, Any]]:
    """A PersistentVolume of a folder of this machine, for this namespace alone, and its claim there."""
    common = {"accessModes": [mode], "storageClassName": ""}
    size = {"storage": "1Gi"}
    owner = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name, "namespace": namespace}
    volume = f"{namespace}-{name}"
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume, "labels": volumes_of(namespace)},
            "spec": {
                **common,
                "capacity": size,
                "claimRef": owner,
                "hostPath": {"path": str(path), "type": "Directory"},
                "persistentVolumeReclaimPolicy": "Retain",
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {**common, "resources": {"requests": size}, "volumeName": volume},
        },
    ]


def volumes_of(namespace: str) -> dict[str, str]:
    """The label of the PersistentVolumes that were made for it."""
    return {"octavo.dev/namespace": namespace}


def policy(image: str) -> list[dict[str, Any]]:
    """For pods with ``image`` in namespaces with ``LABEL``: the mounts, and ``REQUESTS`` in place of theirs."""
    volumes, mounts = "Object.spec.volumes", "Object.spec.containers.volumeMounts"
    claims = [
        f"{volumes}{{name: {_cel(_claim(one))}, persistentVolumeClaim: {volumes}.persistentVolumeClaim"
        f"{{claimName: {_cel(_claim(one))}, readOnly: {_cel(not one.writable)}}}}}"
        for one in mounted()
    ]
    points = [
        f"{mounts}{{name: {_cel(_claim(one))}, mountPath: {_cel(one.at)}, readOnly: {_cel(not one.writable)}}}"
        for one in mounted()
    ]
    each = (
        f"filter(c, c.image == {_cel(image)}).map(c, Object.spec.containers{{name: c.name,"
        f" resources: Object.spec.containers.resources{{requests: {_cel(REQUESTS)}}},"
        f" volumeMounts: [{', '.join(points)}]}})"
    )
    initial = each.replace("Object.spec.containers", "Object.spec.initContainers")
    expression = (
        f"Object{{spec: Object.spec{{volumes: [{', '.join(claims)}], containers: object.spec.containers.{each},"
        f" initContainers: has(object.spec.initContainers) ? object.spec.initContainers.{initial} : []}}}}"
    )
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    metadata = {"name": "octavo-node-environment"}
    return [
        {
            "apiVersion": _ADMISSION,
            "kind": "MutatingAdmissionPolicy",
            "metadata": metadata,
            "spec": {
                "failurePolicy": "Fail",
                "matchConditions": [
                    {
                        "name": "the-servers-image",
                        "expression": f"object.spec.containers.exists(c, c.image == {_cel(image)})",
                    }
                ],
                "matchConstraints": {"resourceRules": [rule]},
                "mutations": [
                    {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}},
                ],
                "reinvocationPolicy": "Never",
            },
        },
        {
            "apiVersion": _ADMISSION,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": metadata,
            "spec": {
                "matchResources": {"namespaceSelector": {"matchLabels": dict(LABEL)}},
                "policyName": metadata["name"],
            },
        },
    ]


def _cel(value: object) -> str:
    """Strings, booleans and maps of them are written as in JSON."""
    return json.dumps(value)


def _claim(one: Mounted) -> str:
    return f"node-{one.name}"


def _mount_points() -> Iterator[str]:
    """Yield every folder on the way to a mount, open to all users: runc would create it for root only."""
    seen = {"usr", "root", "home", "home/ray", "octavo", "octavo/cache", "octavo/cache/octavo", "opt", "var", "tmp"}
    for one in mounted():
        at = Path(one.at)
        for path in (*reversed(at.parents), at):
            name = str(path).lstrip("/")
            if name and name not in seen:
                seen.add(name)
                yield name
