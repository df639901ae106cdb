"""API paths of the kinds that the operator reads and writes."""

from dataclasses import dataclass

from octavo_api.resource.deployment import KIND
from octavo_operator.model import names


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of the Kubernetes API. ``group`` is empty for the core kinds."""

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """Return the path of the kind's version, where discovery lists the kinds."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Return the path of one object, or of all if ``name`` is empty; of all namespaces if ``namespace`` is None."""
        parts = [self.root, *(["namespaces", namespace] if namespace else []), self.plural, name, subresource]
        return "/".join(part for part in parts if part)


SERVING_DEPLOYMENT = Kind(names.GROUP, names.VERSION, names.PLURAL, KIND)
RAY_CLUSTER = Kind("ray.io", "v1", "rayclusters", "RayCluster")
SERVICE = Kind("", "v1", "services", "Service")
SECRET = Kind("", "v1", "secrets", "Secret")
CLAIM = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
EVENT = Kind("", "v1", "events", "Event")
DISRUPTION_BUDGET = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICY = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
ENDPOINT_SLICE = Kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")

LISTED_CHILDREN = (SERVICE, DISRUPTION_BUDGET, NETWORK_POLICY)
"""Children that the operator lists by label. It also lists RayClusters by label, but apart, because their kind may be
missing. It reads Secrets by name only."""
