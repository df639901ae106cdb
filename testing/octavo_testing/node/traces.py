"""Traces that a node could leave on this machine, compared before its start and after its end."""

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from octavo_testing.node import cgroups
from octavo_testing.node.node import HOME

_SETTINGS = (
    *("kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"),
    *("vm/overcommit_memory", "vm/panic_on_oom", "net/ipv4/ip_forward", "net/netfilter/nf_conntrack_max"),
)
_FOLDERS = ("/run/netns", "/run/containerd", "/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni", "/var/log/pods")


@dataclass(frozen=True, slots=True)
class Traces:
    """One set of lines for each kind."""

    links: frozenset[str]
    addresses: frozenset[str]
    routes: frozenset[str]
    firewall: frozenset[str]
    mounts: frozenset[str]
    cgroups: frozenset[str]
    settings: frozenset[str]
    folders: frozenset[str]

    def beyond(self, earlier: "Traces") -> dict[str, set[str]]:
        """Lines that are in only one of the two, by kind; empty where nothing was left or lost."""
        pairs = {field.name: getattr(self, field.name) ^ getattr(earlier, field.name) for field in fields(self)}
        return {name: set(lines) for name, lines in pairs.items() if lines}


@contextlib.contextmanager
def unchanged() -> Iterator[None]:
    """Check that this block leaves nothing on the machine, and takes nothing with it."""
    before = read()
    yield
    assert read().beyond(before) == {}, "the node left something, or took something with it"


def read() -> Traces:
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return Traces(
        links=_lines("ip", "-brief", "link", "show"),
        addresses=_lines("ip", "-brief", "address", "show"),
        routes=_lines("ip", "route", "show", "table", "all"),
        firewall=_lines("nft", "list", "ruleset") | _lines("iptables-save"),
        mounts=frozenset(line.split(" ", 4)[4] for line in mounts),
        cgroups=frozenset(str(path) for path in cgroups.folders()),
        settings=frozenset(
            f"{name}={path.read_text().strip()}" for name in _SETTINGS if (path := Path("/proc/sys", name)).exists()
        ),
        folders=frozenset(name for name in (*_FOLDERS, str(HOME)) if Path(name).exists()),
    )


def _lines(*command: str) -> frozenset[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return frozenset(line for line in map(str.strip, done.stdout.splitlines()) if line and not line.startswith("#"))
