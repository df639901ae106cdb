"""The whole ``status``: facts for users, dashboards and the scale subresource, and the memory of the next plan."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from octavo_api.resource.deployment import ServingDeployment
from octavo_operator.decide.application import ApplicationView, SyncState
from octavo_operator.decide.outcome import Outcome
from octavo_operator.model import conditions
from octavo_operator.model.conditions import Condition, Reason, Type
from octavo_operator.model.desired import DesiredApplication, Mode
from octavo_operator.model.memory import LastError, Memory, rfc3339
from octavo_operator.model.observed import Application, Key, Resource
from octavo_operator.objects import children
from octavo_operator.report.evaluation import Evaluation, running

MESSAGE_LIMIT = 1024


def build_status(
    resource: Resource,
    deployment: ServingDeployment,
    desired: DesiredApplication,
    memory: Memory,
    outcome: Outcome,
    updated: tuple[Condition, ...],
    evaluation: Evaluation,
    now: float,
) -> dict[str, Any]:
    engines = outcome.active.engines if outcome.active.ours else None
    config_hash, config_generation = _config(resource, memory, outcome)
    status: dict[str, Any] = {
        "observedGeneration": resource.generation,
        "conditions": condition_documents(updated, now),
        "urls": _urls(resource.key, deployment, desired, outcome),
        "rayCluster": _ray_cluster(desired, outcome),
        "replicas": len(engines.replicas) if engines else _remembered(resource, outcome, "replicas"),
        "readyReplicas": running(engines) if engines else _remembered(resource, outcome, "readyReplicas"),
        "updatedReplicas": _updated(outcome.target),
        "selector": selector(resource.key),
        "configHash": config_hash,
        "configGeneration": config_generation,
        "applications": _applications(outcome.target) or _applications(outcome.active),
        "driftCorrections": [rfc3339(at) for at in outcome.corrections],
        "progress": {"state": evaluation.progress, "since": rfc3339(evaluation.since)} if evaluation.progress else None,
        "lastError": _last_error(memory, outcome, updated, now),
    }
    return {name: value for name, value in status.items() if value not in (None, "", {}, [])}


def condition_documents(updated: tuple[Condition, ...], now: float) -> list[dict[str, Any]]:
    return [
        conditions.condition_document(condition, rfc3339(now if condition.since is None else condition.since))
        for condition in updated
    ]


def selector(key: Key) -> str:
    """Return the selector. It is never empty: a HorizontalPodAutoscaler rejects an empty one."""
    return ",".join(f"{name}={value}" for name, value in children.engine_labels(key).items())


def _config(resource: Resource, memory: Memory, outcome: Outcome) -> tuple[str | None, int | None]:
    """Return the hash and generation of our configuration that Serve was seen to have.

    They stay while Serve does not report. A configuration that was only requested does not count: a failed put must not
    look like one that another client reverted.
    """
    if outcome.switched and outcome.target.sync is SyncState.CURRENT:
        return outcome.target.config_hash, resource.generation
    if (
        outcome.stopped
        or not (outcome.cluster.name or outcome.cluster.address)
        or outcome.cluster.name != memory.cluster
    ):
        return None, None
    return memory.config_hash or None, memory.config_generation or None


def _remembered(resource: Resource, outcome: Outcome, field: str) -> int:
    """Return the last count while Ray does not answer, else 0.

    A restart of the head removes no replica, and an autoscaler that reads 0 during the restart would add some.
    """
    value = resource.status.get(field)
    is_silent = outcome.active.sync is SyncState.UNKNOWN and outcome.cluster.name == _front_before(resource)
    return value if isinstance(value, int) and is_silent and not outcome.stopped else 0


def _front_before(resource: Resource) -> str:
    cluster = resource.status.get("rayCluster")
    return str(cluster.get("name", "")) if isinstance(cluster, Mapping) else ""


def _updated(view: ApplicationView) -> int:
    """Return the number of updated replicas.

    Serve does not report which replicas are new. So all count once it reports that the roll is over, and none before.
    """
    return running(view.engines) if view.settled else 0


def _urls(key: Key, deployment: ServingDeployment, desired: DesiredApplication, outcome: Outcome) -> dict[str, str]:
    urls: dict[str, str | None] = {"dashboard": outcome.cluster.address}
    if desired.mode is Mode.MANAGED:
        endpoint = deployment.spec.endpoint
        scheme = "https" if endpoint.tls_secret_ref else "http"
        host = f"{key.name}.{key.namespace}.svc"
        urls |= {"http": f"{scheme}://{host}:{endpoint.http.port}/v1", "grpc": f"{host}:{endpoint.grpc.port}"}
    elif (serve := outcome.active.serve) is not None and outcome.active.ours:
        listeners = {listener.partition("://")[0]: listener for listener in reversed(serve.listeners)}
        prefix = str(desired.config["route_prefix"]).rstrip("/")
        proxied = f"{serve.proxy_url.rstrip('/')}{prefix}" if serve.proxy_url else None
        http = proxied or listeners.get("http") or listeners.get("https")
        urls |= {"http": f"{http}/v1" if http else None, "grpc": listeners.get("grpc", "").removeprefix("grpc://")}
    return {name: url for name, url in urls.items() if url}


def _ray_cluster(desired: DesiredApplication, outcome: Outcome) -> dict[str, Any]:
    cluster = outcome.cluster
    cluster_status: dict[str, Any] = {
        "name": cluster.name,
        "mode": "Managed" if desired.mode is Mode.MANAGED else "External",
        "address": cluster.address,
        "rayVersion": cluster.ray_version,
        "image": cluster.image,
        "activeHash": cluster.spec_hash,
        "pendingHash": outcome.pending_hash,
        "draining": [{"name": name, "since": rfc3339(at)} for name, at in sorted(outcome.draining.items())],
    }
    return {name: value for name, value in cluster_status.items() if value not in ("", [])}


def _applications(view: ApplicationView) -> list[dict[str, Any]]:
    return [_application(view.application)] if view.application is not None and view.ours else []


def _application(application: Application) -> dict[str, Any]:
    return {
        "name": application.name,
        "status": application.status,
        "message": truncate(application.message),
        "deployments": [
            {
                "name": deployment.name,
                "status": deployment.status,
                "replicas": dict(sorted(Counter(replica.state for replica in deployment.replicas).items())),
            }
            for _, deployment in sorted(application.deployments.items())
        ],
    }


def _last_error(memory: Memory, outcome: Outcome, updated: tuple[Condition, ...], now: float) -> dict[str, str] | None:
    by_type = {condition.type: condition for condition in updated}
    wrong = next(
        (
            by_type[kind]
            for kind, reason in (
                (Type.APPLICATION_READY, Reason.DEPLOY_FAILED),
                (Type.STALLED, None),
            )
            if kind in by_type and (reason is None or by_type[kind].reason == reason)
        ),
        None,
    )
    last = memory.last_error
    if wrong is None:
        if last is None or by_type[Type.READY].state is conditions.State.TRUE or outcome.stopped:
            return None
        return {"reason": last.reason, "message": last.message, "since": rfc3339(last.since)}
    same: LastError | None = last if last is not None and last.reason == wrong.reason and not outcome.retried else None
    return {
        "reason": str(wrong.reason),
        "message": truncate(wrong.message),
        "since": rfc3339(now if same is None else same.since),
    }


def truncate(message: str) -> str:
    return message if len(message) <= MESSAGE_LIMIT else message[: MESSAGE_LIMIT - 1] + "…"
