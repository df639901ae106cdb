"""Objects beside the RayCluster: Service, PodDisruptionBudget, NetworkPolicy and the token's Secret."""

from collections.abc import Mapping
from typing import Any

from octavo_api.resource.deployment import API_VERSION, KIND, ServingDeployment
from octavo_operator.model import names
from octavo_operator.model.defaults import Defaults
from octavo_operator.model.observed import Key, Resource
from octavo_operator.model.spec_hash import digest
from octavo_operator.objects.matching import covers

CLUSTER_LABEL = "ray.io/cluster"
"""KubeRay's label on every pod of a RayCluster."""
APPLIED_ANNOTATION = f"{names.GROUP}/applied-hash"
"""Hash of the last applied object. It separates our changes, which may remove fields, from changes by other clients."""

_DASHBOARD_PORT = 8265


def labels(key: Key) -> dict[str, str]:
    return {
        names.DEPLOYMENT_LABEL: key.name,
        "app.kubernetes.io/instance": key.name,
        "app.kubernetes.io/part-of": "octavo",
        "app.kubernetes.io/managed-by": names.FIELD_MANAGER,
    }


def owner_reference(resource: Resource) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": resource.key.name,
        "uid": resource.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def service(resource: Resource, deployment: ServingDeployment, cluster: str) -> dict[str, Any]:
    """Return the Service that selects the gateways of ``cluster``. Its ports are the listeners'."""
    endpoint = deployment.spec.endpoint
    tls = endpoint.tls_secret_ref is not None
    spec = {
        "type": endpoint.service.type.value,
        "selector": {CLUSTER_LABEL: cluster, names.COMPONENT_LABEL: names.GATEWAY_GROUP},
        "ports": [
            _port("http", endpoint.http.port, "https" if tls else "http"),
            _port("grpc", endpoint.grpc.port, "https" if tls else "kubernetes.io/h2c"),
        ],
    }
    return _child(resource, "v1", "Service", names.service(resource.key), spec, endpoint.service.annotations)


def port_corrections(intended: Mapping[str, Any], live: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], ...]:
    """Return the JSON Patch that removes ports of the ``live`` Service that are not ``intended``; empty if none are.

    Ports are a map by number. Server-side apply would keep a port of another client. The API server would reject the
    apply if that port has the name of one of ours.
    """
    live_ports = {_number(port): port for port in ((live or {}).get("spec") or {}).get("ports") or ()}
    intended_ports = {_number(port): port for port in intended["spec"]["ports"]}
    if live is None or live_ports.keys() <= intended_ports.keys():
        return ()
    node_ports = {key: {"nodePort": port["nodePort"]} for key, port in live_ports.items() if "nodePort" in port}
    ports = [{**port, **node_ports.get(key, {})} for key, port in intended_ports.items()]
    return (
        {"op": "test", "path": "/metadata/uid", "value": live["metadata"].get("uid")},
        {"op": "replace", "path": "/spec/ports", "value": ports},
    )


def _number(port: Mapping[str, Any]) -> tuple[int, str]:
    return port["port"], str(port.get("protocol", "TCP"))


def selected_cluster(live: Mapping[str, Any] | None) -> str:
    """Return the cluster that a Service selects, empty if there is none."""
    selector = ((live or {}).get("spec") or {}).get("selector") or {}
    return str(selector.get(CLUSTER_LABEL, ""))


def disruption_budget(resource: Resource, replicas: int) -> dict[str, Any] | None:
    """Return a budget that permits the eviction of one engine at a time.

    One engine gets no budget, because it could then never move. ``minAvailable`` is an integer: a percentage or
    ``maxUnavailable`` needs a scale subresource, which RayCluster lacks.
    """
    if replicas < 2:
        return None
    spec = {"minAvailable": replicas - 1, "selector": {"matchLabels": engine_labels(resource.key)}}
    name = names.disruption_budget(resource.key)
    return _child(resource, "policy/v1", "PodDisruptionBudget", name, spec)


def engine_labels(key: Key) -> dict[str, str]:
    return {names.DEPLOYMENT_LABEL: key.name, names.COMPONENT_LABEL: names.ENGINE_GROUP}


def network_policy(resource: Resource, deployment: ServingDeployment, defaults: Defaults) -> dict[str, Any] | None:
    """Return a policy that admits all clients to the listeners, the operator to the dashboard, pods to each other."""
    if not deployment.managed.network_policy:
        return None
    key, endpoint = resource.key, deployment.spec.endpoint
    own_pods = {"podSelector": {"matchLabels": {names.DEPLOYMENT_LABEL: key.name}}}
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": defaults.operator_namespace}}
        if defaults.operator_namespace
        else {},
        "podSelector": {"matchLabels": dict(defaults.operator_labels)},
    }
    listeners = [{"port": port, "protocol": "TCP"} for port in (endpoint.http.port, endpoint.grpc.port)]
    spec = {
        "podSelector": {"matchLabels": {names.DEPLOYMENT_LABEL: key.name}},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [own_pods]},
            {"from": [operator], "ports": [{"port": _DASHBOARD_PORT, "protocol": "TCP"}]},
            {"ports": listeners},
        ],
    }
    return _child(resource, "networking.k8s.io/v1", "NetworkPolicy", names.network_policy(key), spec)


def token_secret(resource: Resource) -> dict[str, Any]:
    """Return the Secret without its value, which ``Kube.create_secret`` draws."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(resource, names.token_secret(resource.key), {}),
        "type": "Opaque",
    }


def matches_intended(intended: Mapping[str, Any], live: Mapping[str, Any] | None) -> bool:
    """Return True if ``live`` is as intended.

    Then we applied it last, by the hash among the annotations, and no other client has changed it.
    """
    return live is not None and covers(intended, live)


def was_applied(intended: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    annotations = (live.get("metadata") or {}).get("annotations") or {}
    return bool(annotations.get(APPLIED_ANNOTATION) == intended["metadata"]["annotations"][APPLIED_ANNOTATION])


def _child(
    resource: Resource,
    api_version: str,
    kind: str,
    name: str,
    spec: Mapping[str, Any],
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    applied = digest([spec, annotations or {}])
    metadata = _metadata(resource, name, {**(annotations or {}), APPLIED_ANNOTATION: applied})
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": dict(spec)}


def _metadata(resource: Resource, name: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": resource.key.namespace,
        "labels": labels(resource.key),
        **({"annotations": dict(annotations)} if annotations else {}),
        "ownerReferences": [owner_reference(resource)],
    }


def _port(name: str, port: int, protocol: str) -> dict[str, Any]:
    return {"name": name, "port": port, "targetPort": name, "protocol": "TCP", "appProtocol": protocol}
