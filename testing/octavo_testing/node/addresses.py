"""Addresses of the node's network. They exist on this machine only, between one pair of links."""

import ipaddress
import json
import subprocess
from pathlib import Path

from octavo_testing.processes import StartFailed

LINK = "octavo-node"
"""The host's end of the pair; the other end is ``eth0`` of the node."""
HOST = "10.210.0.1"
NODE = "10.210.0.2"
LINK_NETWORK = "10.210.0.0/24"
PODS = "10.244.0.0/24"
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"


def refuse_overlap() -> None:
    """Raises ``StartFailed`` where the machine has a route of its own into one of these networks."""
    done = subprocess.run(["ip", "-json", "-4", "route", "show"], capture_output=True, text=True, check=True)
    ours = [ipaddress.ip_network(network) for network in (LINK_NETWORK, PODS, SERVICES)]
    for route in json.loads(done.stdout):
        if route["dst"] == "default":
            continue
        theirs = ipaddress.ip_network(route["dst"], strict=False)
        if any(theirs.overlaps(network) for network in ours):
            raise StartFailed(
                f"this machine has a route to {theirs} by {route.get('dev')}, which the node would use for itself"
            )


def connect(init: int) -> None:
    """Links the host and the network namespace of the process ``init``; both ends go with that namespace."""
    inside = ("nsenter", f"--target={init}", "--net", "--")
    for command in (
        ("ip", "link", "add", LINK, "type", "veth", "peer", "name", "eth0", "netns", str(init)),
        ("ip", "address", "add", f"{HOST}/24", "dev", LINK),
        ("ip", "link", "set", LINK, "up"),
        (*inside, "ip", "link", "set", "lo", "up"),
        (*inside, "ip", "address", "add", f"{NODE}/24", "dev", "eth0"),
        (*inside, "ip", "link", "set", "eth0", "up"),
        # Pods reach nothing outside: the host forwards nothing. kubelet asks for a default route all the same.
        (*inside, "ip", "route", "add", "default", "via", HOST),
        (*inside, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"),
        ("ip", "route", "add", PODS, "via", NODE, "dev", LINK),
        ("ip", "route", "add", SERVICES, "via", NODE, "dev", LINK),
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise StartFailed(f"{' '.join(command)}: {done.stderr.strip()}")


def disconnect() -> None:
    """Takes the host's end away where the namespace has not done so yet; routes go with it."""
    if Path("/sys/class/net", LINK).exists():
        subprocess.run(["ip", "link", "delete", LINK], capture_output=True, check=False)
