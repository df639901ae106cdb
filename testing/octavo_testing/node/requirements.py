"""Requirements of a node: root, namespaces, and programs of Debian packages."""

import os
import shutil
import subprocess
import sys

from octavo_testing.kube.tools import NODE_TIER, ToolsMissing, why_not

PACKAGES = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "ip": "iproute2",
    "runc": "runc",
    "nft": "nftables",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "redis-check-rdb": "redis-tools",
}
"""Debian's package of each program. The last is Redis' server by another name: the server's own package starts it."""


def reason_against() -> str | None:
    """Return the reason why no node can start here, or None; change nothing."""
    if sys.platform != "linux":
        return "a node needs Linux"
    if os.geteuid() != 0:
        return "a node needs root: it makes namespaces, mounts and cgroups"
    if reason := why_not(*NODE_TIER):
        return reason
    missing = _missing()
    if missing and shutil.which("apt-get") is None:
        return f"{', '.join(missing)} not found, and there is no apt-get to install them with"
    if "unshare" not in missing:
        tried = subprocess.run(
            ["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True, text=True, check=False
        )
        if tried.returncode != 0:
            return f"this machine gives no namespaces: {tried.stderr.strip()}"
    return None


def install() -> None:
    """Install the missing Debian packages; raise ``ToolsMissing``."""
    packages = sorted({PACKAGES[program] for program in _missing()})
    if not packages:
        return
    print(f"installing {' '.join(packages)}", file=sys.stderr, flush=True)
    install = ("install", "--yes", "--quiet", "--no-install-recommends", *packages)
    if _apt_get(*install).returncode != 0:
        _apt_get("update", "--quiet")  # a new machine has no list of packages, or an old one
        done = _apt_get(*install)
        if done.returncode != 0:
            raise ToolsMissing(f"apt-get {' '.join(install)} failed:\n{done.stderr[-2000:]}")


def _apt_get(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["apt-get", *arguments],
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def _missing() -> list[str]:
    return [program for program in PACKAGES if shutil.which(program) is None]
