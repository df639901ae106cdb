"""Conditions of a deployment: their types, their reasons, and the step from old conditions to new ones.

The text under each reason gives its meaning and the remedy; ``docs/troubleshooting.md`` is generated from these texts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Type(StrEnum):
    """Subject of a condition."""

    READY = "Ready"
    """The current generation serves. Wait for this condition."""
    AVAILABLE = "Available"
    """Requests are answered now, by any generation. Alert on this condition."""
    SPEC_VALID = "SpecValid"
    """The spec is valid, the objects that it names exist, no foreign object has a name that it needs, and an external
    Ray is compatible. If False, the last valid generation continues to serve."""
    RAY_CLUSTER_READY = "RayClusterReady"
    """Ray's head runs and its dashboard answers. Unknown: it has not answered for up to two minutes, as during a
    restart."""
    APPLICATION_READY = "ApplicationReady"
    """Ray Serve runs our application with the current configuration."""
    ROUTER_READY = "RouterReady"
    """Gateways take requests."""
    PROGRESSING = "Progressing"
    """A change is in progress. False at rest, and when a change is stuck."""
    DEGRADED = "Degraded"
    """The deployment serves, but not as the spec asks."""
    RECONCILING = "Reconciling"
    """Progressing, under the name that tools based on kstatus read; present only while true."""
    STALLED = "Stalled"
    """A user must act; the name is that of kstatus; present only while true."""


class State(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(StrEnum):
    # What the spec asks for
    VALID = "Valid"
    """The spec is valid, and the objects that it names exist."""
    INVALID_SPEC = "InvalidSpec"
    """The spec contradicts itself or has a value that is not allowed. The last valid spec continues to serve. Correct
    the field that the message names."""
    SECRET_NOT_FOUND = "SecretNotFound"
    """A Secret that the spec names, or its key, does not exist in the namespace. Create it; nothing else is needed."""
    CLAIM_NOT_FOUND = "ClaimNotFound"
    """A PersistentVolumeClaim that the spec names does not exist in the namespace. Create it; nothing else is
    needed."""
    OBJECT_NAME_CONFLICT = "ObjectNameConflict"
    """A foreign object has a name that this resource needs: its own name, or a name that begins with it. The object is
    neither labelled nor owned by this resource. The operator does not change it, and the last generation continues to
    serve. Delete the object, give the resource another name, or set the label that the message names on the object."""
    INCOMPATIBLE_RAY = "IncompatibleRay"
    """The external Ray has another version, no Serve, or no Octavo of this version that could be imported. Install
    there what the message names. The operator checks again within five minutes."""
    # The Ray cluster
    HEAD_READY = "HeadReady"
    """Ray's head runs and its dashboard answers."""
    RAY_CLUSTER_PENDING = "RayClusterPending"
    """The RayCluster is being created, or its predecessor is still being deleted. Wait. If it lasts, look at the events
    of the RayCluster and of its pods."""
    HEAD_NOT_READY = "HeadNotReady"
    """The head's pod is not ready: it is scheduled, pulls its image or starts. If it lasts,
    `kubectl describe` the pod."""
    UNREACHABLE = "Unreachable"
    """Ray's dashboard does not answer; replicas may still serve. The condition recovers when the head comes back. If it
    lasts, look at the head pod, at network policies, or at the address in external mode."""
    AUTH_FAILED = "AuthFailed"
    """Ray rejects the token. On an external Ray, put the right token into the Secret that
    `rayCluster.external.authSecretRef` names. In managed mode, the Secret `NAME-ray-token` was changed. Restore the old
    value, or delete the Secret: the operator then creates a new cluster with a new token."""
    KUBERAY_NOT_INSTALLED = "KubeRayNotInstalled"
    """Kubernetes does not know RayClusters. Install KubeRay as the message says; the operator needs no restart."""
    # The application
    RUNNING = "Running"
    """Ray Serve runs the application with our configuration."""
    NOT_DEPLOYED = "NotDeployed"
    """Serve does not have the application yet."""
    DEPLOYING = "Deploying"
    """Serve starts or replaces replicas."""
    DEPLOY_FAILED = "DeployFailed"
    """Replicas do not start, most often because of the model or the memory. Remaining old replicas continue to serve;
    with one replica and maxSurgePercent 0 there are none. The message has the error; correct the spec. The operator
    retries every five minutes."""
    UNHEALTHY = "Unhealthy"
    """Replicas that ran have failed; Serve replaces them. If it lasts, look at the logs of the engine pods."""
    APPLICATION_NAME_CONFLICT = "ApplicationNameConflict"
    """Serve has a foreign application of this name. The operator does not change it. Rename the resource, or delete
    that application."""
    DELETING = "Deleting"
    """Serve deletes the application and waits for its streams to end."""
    # The front door
    ENDPOINTS_READY = "EndpointsReady"
    """Gateways accept connections."""
    NO_ENDPOINTS = "NoEndpoints"
    """No gateway accepts connections. If it lasts, look at the gateway pods."""
    # Progress, and the whole
    SERVING = "Serving"
    """The current generation serves."""
    SCALED_TO_ZERO = "ScaledToZero"
    """The spec asks for no engine. With autoscaling the first request starts one."""
    SUSPENDED = "Suspended"
    """`spec.suspend` is true. Set it to false to serve again."""
    SUSPENDING = "Suspending"
    """Streams drain before everything stops."""
    ROLLING_OUT = "RollingOut"
    """The current generation is starting; the last one serves."""
    SCALING = "Scaling"
    """Replicas are added or removed."""
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    """Replicas wait for pods that fit on no node. Add nodes, request less, or revert the edit; the last generation
    continues to serve. Only `Progressing` has this reason."""
    NEW_GENERATION_AVAILABLE = "NewGenerationAvailable"
    """The last change is complete."""
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    """Nothing changed for `rollout.progressDeadlineSeconds`; the operator keeps retrying. The other conditions name the
    obstacle."""
    WAITING = "Waiting"
    """No progress is possible until the problem of another condition is solved. That condition names the remedy."""
    # Degradations
    AS_ASKED = "AsAsked"
    """Nothing is missing."""
    REPLICAS_MISSING = "ReplicasMissing"
    """Some replicas do not run; the others answer."""
    OLD_GENERATION_SERVING = "OldGenerationServing"
    """The current generation cannot be served, so the last one continues to serve."""
    DRIFT_FIGHT = "DriftFight"
    """Another client puts another configuration into Serve repeatedly. The operator reverts it three times in ten
    minutes and then waits. Find the other client of this Ray and let only one of them write."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Present state of a condition, with reason and message."""

    state: State
    reason: str
    message: str = ""

    @property
    def true(self) -> bool:
        return self.state is State.TRUE


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition in a status. ``since`` is the Unix time of the last change of its state."""

    type: str
    state: State
    reason: str
    message: str
    generation: int
    since: float | None


def yes(reason: Reason, message: str = "") -> Verdict:
    return Verdict(State.TRUE, reason, message)


def no(reason: Reason, message: str = "") -> Verdict:
    return Verdict(State.FALSE, reason, message)


def unknown(reason: Reason, message: str = "") -> Verdict:
    return Verdict(State.UNKNOWN, reason, message)


def update(
    before: Mapping[str, Condition], verdicts: Mapping[Type, Verdict], generation: int, now: float
) -> tuple[Condition, ...]:
    """Return the conditions in the order of ``verdicts``. ``since`` changes only with the state."""
    updated = []
    for kind, verdict in verdicts.items():
        last = before.get(kind)
        same = last is not None and last.state is verdict.state and last.since is not None
        since = last.since if last is not None and same else now
        updated.append(Condition(kind, verdict.state, verdict.reason, verdict.message, generation, since))
    return tuple(updated)


def changed(before: Mapping[str, Condition], after: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return the conditions with another state or another reason than before."""
    return tuple(
        condition
        for condition in after
        if (last := before.get(condition.type)) is None
        or (last.state, last.reason) != (condition.state, condition.reason)
    )


def condition_document(condition: Condition, at: str) -> dict[str, Any]:
    """Return the condition in Kubernetes' form. ``at`` is ``since`` in RFC 3339."""
    return {
        "type": str(condition.type),
        "status": str(condition.state),
        "observedGeneration": condition.generation,
        "lastTransitionTime": at,
        "reason": str(condition.reason),
        "message": condition.message,
    }
