"""The real helm, with one kubeconfig and folders of its own."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from octavo_testing.kube.kubectl import Refused
from octavo_testing.kube.tools import ensure, version

CHART = Path(__file__).parents[3] / "helm" / "octavo"


class Helm:
    """Commands in one namespace."""

    def __init__(self, kubeconfig: Path, folder: Path, namespace: str = "octavo") -> None:
        self._program = ensure("helm")["helm"]
        self._kubeconfig = kubeconfig
        self._folder = folder
        self.namespace = namespace

    def run(self, *arguments: str, timeout_s: float = 120) -> str:
        """Return standard output; raise ``Refused`` if the exit status is not 0."""
        environment = os.environ | {
            "KUBECONFIG": str(self._kubeconfig),
            "HELM_CACHE_HOME": str(self._folder / "helm-cache"),
            "HELM_CONFIG_HOME": str(self._folder / "helm-config"),
            "HELM_DATA_HOME": str(self._folder / "helm-data"),
        }
        command = [str(self._program), *arguments, f"--namespace={self.namespace}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
        if done.returncode != 0:
            raise Refused(f"{done.stdout.strip()}\n{done.stderr.strip()}".strip())
        return done.stdout

    def install(self, release: str, *flags: str, chart: Path = CHART) -> str:
        return self.run("install", release, str(chart), "--create-namespace", *flags)

    def upgrade(self, release: str, *flags: str, chart: Path = CHART) -> str:
        return self.run("upgrade", release, str(chart), *flags)

    def uninstall(self, release: str, *flags: str) -> str:
        return self.run("uninstall", release, "--wait", *flags)

    def template(self, *flags: str, chart: Path = CHART) -> str:
        """Render for the version of the tests' API server, which ``helm template`` does not query."""
        return self.run("template", "octavo", str(chart), f"--kube-version={version('kubernetes')}", *flags)

    def releases(self) -> list[dict[str, Any]]:
        return list(json.loads(self.run("list", "--output=json")))
