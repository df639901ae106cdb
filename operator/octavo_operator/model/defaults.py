"""Defaults of a plan, from the operator's own installation.

None of them may change an object that exists: see ``spec_hash`` and ``objects.raycluster.TEMPLATE_ANNOTATION``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo_api.resource.serve_config import Placement
from octavo_operator.model.observed import Key


@dataclass(frozen=True, slots=True)
class Local:
    """Place of ``octavo up``: a Ray on this machine. There is no Kubernetes, so no children and no finalizer."""

    address: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults from the operator's environment and flags."""

    image: str
    """Image of managed clusters whose ``rayCluster.managed.image`` is not set."""
    ray_version: str
    """Ray version in that image."""
    dashboard: str = "http://{cluster}-head-svc.{namespace}.svc:8265"
    """Address of a managed cluster's dashboard."""
    operator_namespace: str = ""
    operator_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the operator's own pod in that namespace, for NetworkPolicies: it must reach the dashboards."""
    local: Local | None = None

    def dashboard_of(self, key: Key, cluster: str) -> str:
        return self.dashboard.format(cluster=cluster, namespace=key.namespace)
