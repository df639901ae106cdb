"""Access to a cluster through the real kubectl."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from octavo_testing.processes import beside_python

Object = dict[str, Any]


class Refused(Exception):
    """A command that failed; the message is kubectl's."""


class Kubectl:
    """Commands with one kubeconfig in one namespace. If it is empty, objects name their own namespace."""

    def __init__(self, kubeconfig: Path, namespace: str = "default") -> None:
        self.kubeconfig = kubeconfig
        self.namespace = namespace

    def within(self, namespace: str) -> "Kubectl":
        return Kubectl(self.kubeconfig, namespace)

    def run(self, *arguments: str, stdin: str | None = None, timeout_s: float = 120) -> str:
        """Return standard output; raise ``Refused`` if the exit status is not 0."""
        command = [
            str(beside_python("kubectl")),
            f"--kubeconfig={self.kubeconfig}",
            # Beside the cluster, gone with it, and not in the user's home.
            f"--cache-dir={self.kubeconfig.parent / 'kubectl-cache'}",
            *([f"--namespace={self.namespace}"] if self.namespace else []),
        ]
        done = subprocess.run(
            [*command, *arguments], input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if done.returncode != 0:
            raise Refused(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def apply(self, *documents: Mapping[str, Any], server_side: bool = False, manager: str | None = None) -> str:
        flags = ["--server-side"] if server_side else []
        flags += [f"--field-manager={manager}"] if manager else []
        return self.run("apply", *flags, "-f", "-", stdin=_stream(documents))

    def create(self, *documents: Mapping[str, Any]) -> str:
        return self.run("create", "-f", "-", stdin=_stream(documents))

    def get(self, kind: str, name: str) -> Object:
        """Return an object that exists."""
        found = self.find(kind, name)
        assert found is not None, f"{kind}/{name} is gone"
        return found

    def find(self, kind: str, name: str) -> Object | None:
        """Return the object, or None."""
        found = self.run("get", kind, name, "-o", "json", "--ignore-not-found", "--show-managed-fields=false")
        return dict(json.loads(found)) if found.strip() else None

    def list(self, kind: str, selector: str = "") -> list[Object]:
        flags = [f"--selector={selector}"] if selector else []
        return list(json.loads(self.run("get", kind, "-o", "json", *flags))["items"])

    def names(self, kind: str, selector: str = "") -> set[str]:
        return {item["metadata"]["name"] for item in self.list(kind, selector)}

    def patch(self, kind: str, name: str, change: Mapping[str, Any], *flags: str) -> str:
        return self.run("patch", kind, name, "--type=merge", f"--patch={json.dumps(change)}", *flags)

    def delete(self, kind: str, name: str, *flags: str) -> str:
        return self.run("delete", kind, name, "--ignore-not-found", *flags)

    def condition(self, kind: str, name: str, type_: str) -> Object:
        """Return a condition of the object's status, empty if it has none."""
        found = self.find(kind, name) or {}
        conditions = found.get("status", {}).get("conditions", [])
        return next((dict(c) for c in conditions if c["type"] == type_), {})


def _stream(documents: Sequence[Mapping[str, Any]]) -> str:
    return yaml.safe_dump_all([dict(d) for d in documents], sort_keys=False)
