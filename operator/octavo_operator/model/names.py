"""Names and labels of all objects that the operator creates.

Derived names fit Kubernetes' 63 and KubeRay's 53 characters, because a ServingDeployment's own name has at most 40.
"""

from octavo_operator.model.observed import Key

GROUP, VERSION, PLURAL = "serving.octavo.dev", "v1alpha1", "servingdeployments"
FIELD_MANAGER = "octavo-operator"

DEPLOYMENT_LABEL = f"{GROUP}/deployment"
"""Label on every child and its pods: the ServingDeployment's name. All watches and lists filter by it."""
HASH_LABEL = f"{GROUP}/spec-hash"
"""Label on a RayCluster and its pods: the hash of the fields whose change needs a new cluster."""
COMPONENT_LABEL = "app.kubernetes.io/component"
"""Label on pods: ``head``, ``gateway`` or ``engine``."""
FORCE_DELETE_ANNOTATION = f"{GROUP}/force-delete"
"""``"true"`` on a deployment that is being deleted: release it after one try, even if Ray did not answer."""

ENGINE_GROUP, GATEWAY_GROUP = "engine", "gateway"
"""Worker groups of the RayCluster."""
ENGINE_RESOURCE, GATEWAY_RESOURCE = "octavo_engine", "octavo_gateway"
"""Custom Ray resources, one per pod: so a pod has at most one engine or one gateway."""

AUTH_TOKEN_KEY = "auth_token"
"""Key in the Secret with Ray's token: in the operator's own, and in a user's if the spec names no other key."""

SECRETS_FOLDER = "/etc/octavo"
"""Folder in pods with ``tls/tls.crt``, ``tls/tls.key``, ``api-keys/keys``, ``hugging-face/token``."""


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
    """Return the application's name in a shared Ray. Its route prefix behind Serve's proxy is ``/NAMESPACE/NAME``."""
    return f"{key.namespace}.{key.name}"
