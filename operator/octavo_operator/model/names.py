"""Names and labels of everything that the operator makes. Derived ones fit Kubernetes' 63 and KubeRay's 53 characters,
because a ServingDeployment's own name has 40 at most."""

from octavo_operator.model.observed import Key

GROUP, VERSION, PLURAL = "serving.octavo.dev", "v1alpha1", "servingdeployments"
FIELD_MANAGER = "octavo-operator"

DEPLOYMENT_LABEL = f"{GROUP}/deployment"
"""On every child and its pods: the ServingDeployment's name. All watches and lists are filtered by it."""
HASH_LABEL = f"{GROUP}/spec-hash"
"""On a RayCluster and its pods: the hash of what a change of needs a new cluster."""
COMPONENT_LABEL = "app.kubernetes.io/component"
"""On pods: ``head``, ``gateway`` or ``engine``."""
FORCE_DELETE_ANNOTATION = f"{GROUP}/force-delete"
"""``"true"`` on a deployment that is being deleted: let go after one try, whether or not Ray could be told."""

ENGINE_GROUP, GATEWAY_GROUP = "engine", "gateway"
"""Worker groups of the RayCluster."""
ENGINE_RESOURCE, GATEWAY_RESOURCE = "octavo_engine", "octavo_gateway"
"""Custom Ray resources, one per pod: at most one engine, one gateway in it."""

AUTH_TOKEN_KEY = "auth_token"
"""Of the Secret with Ray's token: of one that is made, and of a user's that names no other."""

SECRETS_FOLDER = "/etc/octavo"
"""In pods: ``tls/tls.crt``, ``tls/tls.key``, ``api-keys/keys``, ``hugging-face/token``."""


def cluster(key: Key, spec_hash: str) -> str:
    return f"{key.name}-{spec_hash[:8]}"


def service(key: Key) -> str:
    return key.name


def token_secret(key: Key) -> str:
    return f"{key.name}-ray-token"


def disruption_budget(key: Key) -> str:
    return f"{key.name}-engine"


def network_policy(key: Key) -> str:
    return f"{key.name}-ray"


def external_application(key: Key) -> str:
    """In a Ray that others use too; the route prefix behind Serve's proxy is ``/NAMESPACE/NAME``."""
    return f"{key.namespace}.{key.name}"
