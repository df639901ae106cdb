"""Pod templates of a managed Ray cluster: head, gateways, engines. All fit Pod Security ``restricted``."""

import math
from collections.abc import Mapping
from typing import Any

from octavo_api.resource.deployment import ServingDeployment
from octavo_api.resource.sections import Resources
from octavo_api.resource.serve_config import CONTAINER_LOG, LOG_VARIABLE
from octavo_operator.model import desired, names
from octavo_operator.model.observed import Key
from octavo_operator.model.spec_hash import model_claim

GRACE_S = 3630
"""Grace period of workers in seconds. It is constant: the template cannot change while pods live, and Serve's own
timeout bounds the drain."""
HEAD_GRACE_S = 30
"""Grace period of the head in seconds. The head carries no stream, and Ray's autoscaler, the first process of its
container, takes no SIGTERM."""
_DRAIN_VARIABLE = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
_RAY_DRAIN_S = 3600
"""Seconds for the drain of workers. Ray's default of 30 s would cut streams."""
_OBJECT_STORE_BYTES = 100_000_000
"""Bytes of Ray's object store, little more than Ray's minimum: tokens never go through it."""
_SHARED_MEMORY = "256Mi"
_USER = 1000
_READ_BY_GROUP = 0o440

CACHE_FOLDER = "/octavo/cache"
CLAIMS_FOLDER = "/octavo/claims"


def security_context() -> dict[str, Any]:
    """Return the security context of a container that Pod Security ``restricted`` admits."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def token_environment(key: Key) -> list[dict[str, Any]]:
    """Return the variables of Ray's own authentication, for its processes and for the autoscaler."""
    # Ray refuses to start without it. It is optional because KubeRay cleans up Redis with the head's template, once the
    # deployment and this Secret are gone; a pod that waited for the Secret would hold the cluster for five minutes.
    token = {"name": names.token_secret(key), "key": names.AUTH_TOKEN_KEY, "optional": True}
    return [
        {"name": "RAY_AUTH_MODE", "value": "token"},
        {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": token}},
    ]


def environment(key: Key, deployment: ServingDeployment, own: Mapping[str, str]) -> list[dict[str, Any]]:
    """Join our variables and the user's, each name once. The user's value holds, except for Ray's authentication."""
    token = token_environment(key)
    fixed = {item["name"] for item in token}
    users = [item for item in deployment.managed.env if item.get("name") not in fixed]
    given = {item.get("name") for item in users}
    return [*token, *({"name": name, "value": value} for name, value in own.items() if name not in given), *users]


def head_group(key: Key, deployment: ServingDeployment, image: str, labels: Mapping[str, str]) -> dict[str, Any]:
    resources = _resources(deployment.managed.head.resources, desired.HEAD_CPUS, desired.HEAD_MEMORY)
    container = _container("ray-head", key, deployment, image, resources, [], {_DRAIN_VARIABLE: "0"})
    template = _template(deployment, "head", labels, container, [], HEAD_GRACE_S)
    # Ray's head runs no replica: an engine's memory could take the whole cluster down with it.
    return {"rayStartParams": {**_START, "dashboard-host": "0.0.0.0", "num-cpus": "0"}, "template": template}


def gateway_group(key: Key, deployment: ServingDeployment, image: str, labels: Mapping[str, str]) -> dict[str, Any]:
    endpoint = deployment.spec.endpoint
    resources = _resources(deployment.spec.router.resources, desired.GATEWAY_CPUS, desired.GATEWAY_MEMORY)
    volumes, mounts = _files(deployment, gateway=True)
    container = {
        **_container("ray-worker", key, deployment, image, resources, mounts, _worker_environment(deployment)),
        "ports": [
            {"name": "http", "containerPort": endpoint.http.port, "protocol": "TCP"},
            {"name": "grpc", "containerPort": endpoint.grpc.port, "protocol": "TCP"},
        ],
        # In place of KubeRay's: a gateway is ready when it serves, and leaves the Service when it drains.
        "readinessProbe": {
            "exec": {"command": ["bash", "-c", _both_open(endpoint.http.port, endpoint.grpc.port)]},
            "periodSeconds": 2,
            "timeoutSeconds": 2,
            "failureThreshold": 1,
        },
    }
    template = _worker_template(deployment, names.GATEWAY_GROUP, labels, container, volumes)
    _set_service_account(template, deployment)
    return _worker_group(names.GATEWAY_GROUP, names.GATEWAY_RESOURCE, resources, template)


def engine_group(key: Key, deployment: ServingDeployment, image: str, labels: Mapping[str, str]) -> dict[str, Any]:
    managed = deployment.managed
    resources = _resources(deployment.spec.resources, desired.ENGINE_CPUS, desired.ENGINE_MEMORY)
    volumes, mounts = _files(deployment, gateway=False)
    container = _container("ray-worker", key, deployment, image, resources, mounts, _worker_environment(deployment))
    template = _worker_template(deployment, names.ENGINE_GROUP, labels, container, volumes)
    _set_service_account(template, deployment)
    scheduling = {
        "runtimeClassName": managed.runtime_class_name,
        "nodeSelector": managed.node_selector,
        "tolerations": managed.tolerations,
        "affinity": managed.affinity,
        "topologySpreadConstraints": managed.topology_spread_constraints,
    }
    template["spec"] |= {name: value for name, value in scheduling.items() if value}
    return _worker_group(names.ENGINE_GROUP, names.ENGINE_RESOURCE, resources, template)


_RAY: Mapping[str, str] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    # Gateways have listeners of their own; Serve's would be another open port of each.
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
}
_START: Mapping[str, str] = {"object-store-memory": str(_OBJECT_STORE_BYTES)}


def _worker_group(name: str, resource: str, resources: Mapping[str, Any], template: dict[str, Any]) -> dict[str, Any]:
    cpus = math.ceil(_cpus(resources["limits"]["cpu"]))
    start = {**_START, "num-cpus": str(cpus), "resources": f"'{{\"{resource}\": 1}}'"}
    return {"groupName": name, "rayStartParams": start, "template": template}


def _worker_template(
    deployment: ServingDeployment,
    component: str,
    labels: Mapping[str, str],
    container: dict[str, Any],
    volumes: list[dict[str, Any]],
) -> dict[str, Any]:
    template = _template(deployment, component, labels, container, volumes, GRACE_S)
    # KubeRay's init container, a shell that waits for the head, would as first process ignore SIGTERM: a pod that is
    # deleted before the head is up would stay for all of its grace period.
    template["spec"]["shareProcessNamespace"] = True
    return template


def _template(
    deployment: ServingDeployment,
    component: str,
    labels: Mapping[str, str],
    container: dict[str, Any],
    volumes: list[dict[str, Any]],
    grace_s: int,
) -> dict[str, Any]:
    managed = deployment.managed
    spec: dict[str, Any] = {
        "containers": [container],
        "volumes": [
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": _SHARED_MEMORY}},
            *volumes,
            *managed.volumes,
        ],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": grace_s,
        # Else a Service named like one of Ray's variables would set it (RAY_PORT).
        "enableServiceLinks": False,
    }
    if managed.image_pull_secrets:
        spec["imagePullSecrets"] = managed.image_pull_secrets
    if managed.priority_class_name:
        spec["priorityClassName"] = managed.priority_class_name
    return {"metadata": {"labels": {**labels, names.COMPONENT_LABEL: component}}, "spec": spec}


def _set_service_account(template: dict[str, Any], deployment: ServingDeployment) -> None:
    """Set the user's service account, or mount no token.

    Engines and gateways never call Kubernetes. The head does: KubeRay creates an account for its autoscaler.
    """
    if deployment.managed.service_account_name:
        template["spec"]["serviceAccountName"] = deployment.managed.service_account_name
    else:
        template["spec"]["automountServiceAccountToken"] = False


def _container(
    name: str,
    key: Key,
    deployment: ServingDeployment,
    image: str,
    resources: Mapping[str, Any],
    mounts: list[dict[str, Any]],
    variables: Mapping[str, str],
) -> dict[str, Any]:
    managed = deployment.managed
    container: dict[str, Any] = {
        "name": name,
        "image": image,
        "env": environment(key, deployment, {**_RAY, **variables}),
        "resources": resources,
        "securityContext": security_context(),
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}, *mounts, *managed.volume_mounts],
    }
    if managed.image_pull_policy:
        container["imagePullPolicy"] = managed.image_pull_policy
    return container


def _worker_environment(deployment: ServingDeployment) -> dict[str, str]:
    variables = {
        _DRAIN_VARIABLE: str(_RAY_DRAIN_S),
        "HF_HOME": CACHE_FOLDER,
        # The cache of compiled kernels: kept on the claim if there is one, else compiled by each new pod.
        "XDG_CACHE_HOME": CACHE_FOLDER,
        # Ray keeps what its workers print in files.
        LOG_VARIABLE: CONTAINER_LOG,
    }
    if deployment.spec.model.secret_ref is not None:
        variables["HF_TOKEN_PATH"] = f"{desired.TOKEN_FOLDER}/token"
    return variables


def _files(deployment: ServingDeployment, *, gateway: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return volumes and mounts of a replica's files: Secrets as files, the model's claim, the cache."""
    spec = deployment.spec
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []

    def mount(name: str, source: Mapping[str, Any], path: str, *, read_only: bool) -> None:
        volumes.append({"name": name, **source})
        mounts.append({"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})})

    def secret(volume: str, name: str, folder: str, items: Mapping[str, str]) -> None:
        listed = [{"key": key, "path": path} for key, path in items.items()]
        source = {"secret": {"secretName": name, "defaultMode": _READ_BY_GROUP, "items": listed}}
        mount(volume, source, folder, read_only=True)

    if gateway and (tls := spec.endpoint.tls_secret_ref):
        secret("tls", tls.name, desired.TLS_FOLDER, {"tls.crt": "tls.crt", "tls.key": "tls.key"})
    if gateway and (keys := spec.endpoint.api_key_secret_ref):
        secret("api-keys", keys.name, desired.API_KEYS_FOLDER, {keys.key: "keys"})
    if token := spec.model.secret_ref:
        secret("hugging-face", token.name, desired.TOKEN_FOLDER, {token.key: "token"})
    if claim := model_claim(deployment):
        source = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        mount("model", source, f"{CLAIMS_FOLDER}/{claim}", read_only=True)
    if cache := spec.model.cache:
        mount("cache", {"persistentVolumeClaim": {"claimName": cache.claim_name}}, CACHE_FOLDER, read_only=False)
    else:
        mount("cache", {"emptyDir": {}}, CACHE_FOLDER, read_only=False)
    return volumes, mounts


def _resources(resources: Resources, cpus: float, memory: int) -> dict[str, Any]:
    """Return limits and requests. Requests default to the limits. A default limit is never below a request."""
    limits, requests = resources.limits, resources.requests
    cpu_limit = limits.cpu or max(cpus, requests.cpu or 0)
    memory_limit = limits.memory or max(memory, requests.memory or 0)
    return {
        "limits": {"cpu": cpu_quantity(cpu_limit), "memory": memory_quantity(memory_limit)},
        "requests": {
            "cpu": cpu_quantity(requests.cpu or cpu_limit),
            "memory": memory_quantity(requests.memory or memory_limit),
        },
    }


def cpu_quantity(cpus: float) -> str:
    return str(int(cpus)) if float(cpus).is_integer() else f"{math.ceil(cpus * 1000)}m"


def memory_quantity(count: int) -> str:
    for suffix, unit in (("Gi", 2**30), ("Mi", 2**20)):
        if count % unit == 0:
            return f"{count // unit}{suffix}"
    return str(count)


def _cpus(quantity: str) -> float:
    return float(quantity[:-1]) / 1000 if quantity.endswith("m") else float(quantity)


def _both_open(*ports: int) -> str:
    return " && ".join(f"exec {number}<>/dev/tcp/127.0.0.1/{port}" for number, port in enumerate(ports, start=3))
