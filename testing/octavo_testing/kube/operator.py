"""The operator as a process of this machine, with the rights that the chart gives its ServiceAccount and no others."""

import json
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import yaml

from octavo_testing.kube.audit import Call, Right, calls
from octavo_testing.kube.cluster import Cluster
from octavo_testing.kube.helm import CHART, Helm
from octavo_testing.kube.kubectl import Kubectl, Refused
from octavo_testing.processes import Process, beside_python, free_ports
from octavo_testing.waiting import eventually
from octavo_testing.web import answers, get

RELEASE = "octavo"
IMAGE = "ghcr.io/octavo-dev/octavo-server:0.1.0"
NAMESPACE = "octavo"
CRD = "servingdeployments.serving.octavo.dev"
DEFINITION = CHART.parents[1] / "manifests" / "base" / "crd" / "servingdeployments.yaml"


def add_definition(cluster: Cluster) -> None:
    """Apply our definition, and wait until objects may be owned by ServingDeployments.

    The admission plugin that checks owners reads new kinds every 30 s, and refuses owners of other kinds until then.
    """
    kubectl = cluster.kubectl
    kubectl.run("apply", "--server-side", "-f", str(DEFINITION))
    kubectl.run("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=30s")
    kubectl.run("create", "serviceaccount", "probe")
    kubectl.run("create", "clusterrole", "probe", "--verb=create", "--resource=configmaps")
    kubectl.run("create", "clusterrolebinding", "probe", "--clusterrole=probe", "--serviceaccount=default:probe")
    owner = {"apiVersion": "serving.octavo.dev/v1alpha1", "kind": "ServingDeployment", "name": "nobody", "uid": "none"}
    metadata = {"name": "probe", "ownerReferences": [{**owner, "blockOwnerDeletion": True}]}
    owned = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    probe = Kubectl(cluster.account("default", "probe"))

    def known() -> bool:
        try:
            probe.run("create", "--dry-run=server", "-f", "-", stdin=owned)
        except Refused as refused:
            return "no RESTMapping" not in str(refused) and "cannot find RESTMapping" not in str(refused)
        return True

    eventually("owners of the new kind are known", known, every_s=1)


@dataclass(frozen=True, slots=True)
class Installation:
    """A release of the chart with no operator pod, because the fake node runs none."""

    cluster: Cluster
    helm: Helm
    namespace: str
    all_namespaces: bool

    @classmethod
    def make(
        cls, cluster: Cluster, *values: str, namespace: str = NAMESPACE, all_namespaces: bool = True
    ) -> "Installation":
        helm = Helm(cluster.admin, cluster.folder, namespace)
        made = cls(cluster, helm, namespace, all_namespaces)
        helm.install(RELEASE, *made.flags, *values)
        cluster.kubectl.run("wait", "--for=condition=Established", "--timeout=60s", f"crd/{CRD}")
        return made

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--set", "replicas=0", "--set", f"clusterWide={str(self.all_namespaces).lower()}")

    @property
    def account(self) -> str:
        return f"{self.namespace}:{RELEASE}"

    def granted(self) -> set[Right]:
        """Return the rights of the operator's account by the rendered roles."""
        rendered = self.helm.template(*self.flags)
        kind = "ClusterRole" if self.all_namespaces else "Role"
        return {
            Right(verb, group, resource)
            for document in yaml.safe_load_all(rendered)
            if document and document["kind"] == kind
            for rule in document["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    def recorded(self) -> list[Call]:
        """Return the account's calls to the API server since the cluster started."""
        return list(calls(self.cluster.audit_log, self.account))

    def operator(self, *flags: str, name: str = "operator", dashboard: str | None = None) -> "Operator":
        """``dashboard`` replaces the address of managed clusters' dashboards: no pod serves them here."""
        return Operator(self, name, flags, dashboard)


class Operator:
    """An operator that a test starts and stops at will; its log is one file."""

    def __init__(self, installation: Installation, name: str, flags: Sequence[str], dashboard: str | None) -> None:
        self._installation = installation
        self._name = name
        self._flags = tuple(flags)
        self._dashboard = dashboard
        self._health_port, self._metrics_port = free_ports(2)
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        assert self._process is not None, "not started"
        return self._process

    def start(self, *flags: str) -> float:
        """Start it, and return the seconds until it was healthy. ``flags`` come after the flags of the constructor."""
        began = time.monotonic()
        installed = self._installation
        kubeconfig = installed.cluster.account(installed.namespace, RELEASE)
        if self._dashboard is None:
            command: list[str | Path] = [beside_python("octavo"), "operator"]
        else:
            command = [sys.executable, "-m", "octavo_testing.kube.run_operator"]
        command += [
            "--all-namespaces" if installed.all_namespaces else f"--namespace={installed.namespace}",
            f"--image={IMAGE}",
            f"--health-port={self._health_port}",
            f"--metrics-port={self._metrics_port}",
            f"--operator-namespace={installed.namespace}",
            "--operator-labels=app.kubernetes.io/name=octavo",
            *self._flags,
            *flags,
        ]
        environment = {
            "KUBECONFIG": str(kubeconfig),
            "OCTAVO_E2E_DASHBOARD": self._dashboard or "",
        }
        self._process = Process.start(self._name, command, installed.cluster.folder, environment=environment)
        self._process.wait("healthy", self.healthy, 60)
        return time.monotonic() - began

    def stop(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Stop it, and return the seconds until it was gone."""
        return self.process.stop(number, timeout_s=30)

    def restart(self, *flags: str) -> None:
        self.stop()
        self.start(*flags)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def healthy(self) -> bool:
        return answers(f"http://127.0.0.1:{self._health_port}/readyz")

    def metric(self, name: str, labels: Sequence[str] = ()) -> float:
        """Return the sum of a metric's samples that carry all ``labels``, each ``name="value"``."""
        page = get(f"http://127.0.0.1:{self._metrics_port}/metrics")
        pattern = re.compile(rf"^{re.escape(name)}(\{{[^}}]*\}})? (\S+)", re.MULTILINE)
        return sum(float(value) for held, value in pattern.findall(page) if all(label in held for label in labels))

    def log(self) -> str:
        return Path(self.process.log).read_text()
