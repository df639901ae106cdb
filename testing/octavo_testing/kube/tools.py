"""Programs of the test cluster: found, or built from Go modules.

They lie in a cache outside the checkout, keyed by the module files that pin them. ``KUBEBUILDER_ASSETS`` comes first,
as with controller-runtime's envtest. Run as a command, it builds everything that the API server's tier needs.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).parents[3] / "e2e" / "tools"
_COMPONENT = "k8s.io/component-base/version"


@dataclass(frozen=True, slots=True)
class Program:
    """One main package of a module below ``e2e/tools``."""

    name: str
    module: str
    package: str
    tags: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return MODULES / self.module


def _kubernetes(name: str) -> Program:
    return Program(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}")


def _containerd(name: str) -> Program:
    """Without the snapshotter that needs the headers of btrfs."""
    return Program(name, "containerd", f"github.com/containerd/containerd/v2/cmd/{name}", ("no_btrfs",))


def _cni(kind: str, name: str) -> Program:
    return Program(name, "cni", f"github.com/containernetworking/plugins/plugins/{kind}/{name}")


PROGRAMS = {
    program.name: program
    for program in (
        Program("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
        Program("helm", "helm", "helm.sh/helm/v3/cmd/helm"),
        Program("kuberay", "kuberay", "github.com/ray-project/kuberay/ray-operator"),
        _kubernetes("kube-apiserver"),
        _kubernetes("kube-controller-manager"),
        _kubernetes("kube-scheduler"),
        _kubernetes("kubelet"),
        _kubernetes("kube-proxy"),
        _containerd("containerd"),
        _containerd("containerd-shim-runc-v2"),
        _containerd("ctr"),
        _cni("main", "bridge"),
        _cni("main", "loopback"),
        _cni("ipam", "host-local"),
        _cni("meta", "portmap"),
        Program("coredns", "coredns", "github.com/coredns/coredns"),
        Program("pause", "pause", "octavo/e2e/pause"),
    )
}
API_SERVER_TIER = ("etcd", "helm", "kuberay", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
CNI_PLUGINS = ("bridge", "loopback", "host-local", "portmap")
NODE_TIER = (
    *API_SERVER_TIER,
    *("kubelet", "kube-proxy", "containerd", "containerd-shim-runc-v2", "ctr", "coredns", "pause"),
    *CNI_PLUGINS,
)


class ToolsMissing(Exception):
    """A program is missing and cannot be built here; the message names the reason and the remedy."""


def locate(name: str) -> Path:
    """Return the program's path, built or not."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and os.access(given := Path(assets) / name, os.X_OK):
        return given
    program = PROGRAMS[name]
    pins = hashlib.sha256()
    for file in (program.folder / "go.mod", program.folder / "go.sum", *sorted(program.folder.glob("*.go"))):
        # A program of our own needs no other module, and has no sums.
        if file.exists():
            pins.update(file.read_bytes())
    return cache() / "e2e-tools" / f"{program.module}-{pins.hexdigest()[:16]}" / name


def ensure(*names: str) -> dict[str, Path]:
    """Return the paths of programs, and build the missing ones; raise ``ToolsMissing``."""
    found = {name: locate(name) for name in names}
    for name, path in found.items():
        if not path.exists():
            _build(PROGRAMS[name], path)
    return found


def why_not(*names: str) -> str | None:
    """Return the reason why programs are neither in the cache nor buildable, or None."""
    missing = [name for name in names if not locate(name).exists()]
    if missing and shutil.which("go") is None:
        return f"{', '.join(missing)} not built, and there is no Go compiler: install Go, or set KUBEBUILDER_ASSETS"
    return None


def kuberay_crds() -> list[Path]:
    """Return the files with KubeRay's CustomResourceDefinitions, from the module of its operator."""
    program = PROGRAMS["kuberay"]
    kept = locate("kuberay").parent / "crds"
    if not kept.exists():
        module = _go(program, "list", "-m", "-f", "{{.Dir}}", program.package).strip()
        with _locked(kept.parent):
            partial = kept.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(Path(module, "config/crd/bases"), partial, copy_function=shutil.copyfile)
            partial.chmod(0o755)
            if not kept.exists():
                partial.rename(kept)
    return sorted(kept.glob("*.yaml"))


def version(module: str) -> str:
    """Return the version of a tool that its module below ``e2e/tools`` pins; empty if the module is the tool."""
    text = (MODULES / module / "go.mod").read_text()
    package = next(p.package for p in PROGRAMS.values() if p.module == module)
    if text.startswith(f"module {package}\n"):
        return ""
    for path, pinned in re.findall(r"^(?:require )?\s*(\S+) (v\S+)", text, re.MULTILINE):
        if package == path or package.startswith(f"{path}/"):
            return str(pinned)
    raise ToolsMissing(f"{MODULES / module / 'go.mod'} requires no module of {package}")


def cache() -> Path:
    """Return the folder of files that all checkouts share."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo"


def _build(program: Program, path: Path) -> None:
    if reason := why_not(program.name):
        raise ToolsMissing(reason)
    with _locked(path.parent):
        if path.exists():
            return
        print(f"building {program.name} {version(program.module)}".rstrip(), file=sys.stderr, flush=True)
        began = time.monotonic()
        partial = path.with_suffix(".partial")
        _go(program, "build", "-trimpath", *_flags(program), "-o", str(partial), program.package)
        partial.rename(path)
        print(f"built {program.name} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def _flags(program: Program) -> list[str]:
    """Return linker flags: clients cannot parse the API server's version without a stamp."""
    number = version(program.module)
    flags = ["-s", "-w"]
    if program.module == "kubernetes":
        major, minor = number.removeprefix("v").split(".")[:2]
        stamps = {"gitVersion": number, "gitMajor": major, "gitMinor": minor}
        flags += [part for name, value in stamps.items() for part in ("-X", f"{_COMPONENT}.{name}={value}")]
    if program.module == "helm":
        flags += ["-X", f"helm.sh/helm/v3/internal/version.version={number}"]
    if program.module == "containerd":
        flags += ["-X", f"github.com/containerd/containerd/v2/version.Version={number.removeprefix('v')}"]
    return ["-ldflags", " ".join(flags), *(["-tags", ",".join(program.tags)] if program.tags else [])]


def _go(program: Program, *arguments: str) -> str:
    environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOWORK": "off"}
    command = ["go", *arguments]
    if arguments[0] == "build":
        command[2:2] = ["-p", "2"]
    done = subprocess.run(command, cwd=program.folder, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise ToolsMissing(f"{' '.join(command)} in {program.folder} failed:\n{done.stderr[-4000:]}")
    return done.stdout


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(names: list[str]) -> None:
    """Build the named programs, or all of the API server's tier, and print their paths; ``node`` names the node's."""
    for name, path in ensure(*(NODE_TIER if names == ["node"] else names or API_SERVER_TIER)).items():
        print(f"{name} {path}")
    kuberay_crds()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ToolsMissing as error:
        sys.exit(str(error))
