"""What a plan takes from the operator's own installation. None of it may change what is made already: see ``spec_hash``
and ``objects.raycluster.TEMPLATE_ANNOTATION``."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo_api.serve_config import Placement
from octavo_operator.model.observed import Key


@dataclass(frozen=True, slots=True)
class Local:
    """Serves in a Ray on this machine: ``octavo up``. No Kubernetes, so no children and no finalizer."""

    address: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class Defaults:
    """From the operator's environment and flags."""

    image: str
    """Of managed clusters whose ``rayCluster.managed.image`` is not set."""
    ray_version: str
    """The Ray in that image."""
    dashboard: str = "http://{cluster}-head-svc.{namespace}.svc:8265"
    """Address of a managed cluster's dashboard."""
    operator_namespace: str = ""
    operator_labels: Mapping[str, str] = field(default_factory=dict)
    """Where the operator's own pod is, for NetworkPolicies: it must reach the dashboards."""
    local: Local | None = None

    def dashboard_of(self, key: Key, cluster: str) -> str:
        return self.dashboard.format(cluster=cluster, namespace=key.namespace)
