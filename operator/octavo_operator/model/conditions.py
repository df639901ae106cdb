"""Conditions of a deployment: their types, their reasons, and how one follows another.

The text under each reason says what it means and what to do; ``docs/troubleshooting.md`` is made from it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Type(StrEnum):
    """What is judged."""

    READY = "Ready"
    """The current generation is what serves. The one to wait for."""
    AVAILABLE = "Available"
    """Requests are answered now, by whatever generation. The one to alert on."""
    SPEC_VALID = "SpecValid"
    """The spec makes sense, what it names exists, nothing of somebody else has a name that it needs, and an external
    Ray fits. False: what served before goes on."""
    RAY_CLUSTER_READY = "RayClusterReady"
    """Ray's head is there and its dashboard answers. Unknown: it answered before, and has not for up to two minutes."""
    APPLICATION_READY = "ApplicationReady"
    """Ray Serve runs our application with the current configuration."""
    ROUTER_READY = "RouterReady"
    """Gateways take requests."""
    PROGRESSING = "Progressing"
    """Something is on its way. False at rest, and when it is stuck."""
    DEGRADED = "Degraded"
    """It serves, but not as asked."""
    RECONCILING = "Reconciling"
    """Progressing, in kstatus' word for tools that wait; there only while true."""
    STALLED = "Stalled"
    """It needs the user, in kstatus' word; there only while true."""


class State(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(StrEnum):
    # What the spec asks for
    VALID = "Valid"
    """The spec is understood, and what it names exists."""
    INVALID_SPEC = "InvalidSpec"
    """The spec contradicts itself or has a value that is not allowed. The last valid one goes on serving. Correct the
    field that the message names."""
    SECRET_NOT_FOUND = "SecretNotFound"
    """A Secret that the spec names, or its key, does not exist in the namespace. Create it; nothing else is needed."""
    CLAIM_NOT_FOUND = "ClaimNotFound"
    """A PersistentVolumeClaim that the spec names does not exist in the namespace. Create it; nothing else is
    needed."""
    OBJECT_NAME_CONFLICT = "ObjectNameConflict"
    """An object of a name that this resource needs (its own, or one that begins with it) is there and somebody else's:
    neither labelled nor owned by this resource. It is not touched, and what served before goes on. Delete it, give the
    resource another name, or hand it over by the label that the message names; nothing else is needed."""
    INCOMPATIBLE_RAY = "IncompatibleRay"
    """The external Ray has another version, no Serve, or no Octavo of this version that could be imported. Install
    there what the message names; within five minutes it goes on by itself."""
    # The Ray cluster
    HEAD_READY = "HeadReady"
    """Ray's head runs and its dashboard answers."""
    RAY_CLUSTER_PENDING = "RayClusterPending"
    """The RayCluster is being made, or the one before it is still going. Wait; if it lasts, look at the events of the
    RayCluster and of its pods."""
    HEAD_NOT_READY = "HeadNotReady"
    """The head's pod is not ready: it is pulled, scheduled or started. If it lasts, `kubectl describe` the head pod."""
    UNREACHABLE = "Unreachable"
    """Ray's dashboard gives no answer; replicas may well serve. It heals by itself when the head comes back. If it
    lasts, look at the head pod, at network policies, or at the address in external mode."""
    AUTH_FAILED = "AuthFailed"
    """Ray refuses the token. On an external Ray put the right one into the Secret that
    `rayCluster.external.authSecretRef` names. In managed mode somebody changed the Secret `NAME-ray-token`: put the old
    value back, or delete the Secret, and the cluster is stopped and made again with a new one."""
    KUBERAY_NOT_INSTALLED = "KubeRayNotInstalled"
    """Kubernetes does not know RayClusters. Install KubeRay as the message says; the operator then goes on by
    itself."""
    # The application
    RUNNING = "Running"
    """Ray Serve runs the application with our configuration."""
    NOT_DEPLOYED = "NotDeployed"
    """Serve does not have the application yet."""
    DEPLOYING = "Deploying"
    """Serve starts or replaces replicas."""
    DEPLOY_FAILED = "DeployFailed"
    """Replicas do not start, most often because of the model or the memory. Those of before that are left go on
    serving; with maxSurgePercent 0 of one replica none is left. The message has the error; correct the spec. The
    operator tries again every five minutes."""
    UNHEALTHY = "Unhealthy"
    """Replicas that ran have failed; Serve replaces them. If it lasts, look at the logs of the engine pods."""
    APPLICATION_NAME_CONFLICT = "ApplicationNameConflict"
    """Serve has an application of this name that is not ours; it is not touched. Rename the resource, or delete that
    application."""
    DELETING = "Deleting"
    """Serve takes the application away and waits for its streams to end."""
    # The front door
    ENDPOINTS_READY = "EndpointsReady"
    """Gateways accept connections."""
    NO_ENDPOINTS = "NoEndpoints"
    """No gateway accepts connections. If it lasts, look at the gateway pods."""
    # Progress, and the whole
    SERVING = "Serving"
    """The current generation serves."""
    SCALED_TO_ZERO = "ScaledToZero"
    """No engine is asked for. With autoscaling the first request starts one."""
    SUSPENDED = "Suspended"
    """`spec.suspend` is true. Set it to false to serve again."""
    SUSPENDING = "Suspending"
    """Streams end before everything is stopped."""
    ROLLING_OUT = "RollingOut"
    """The current generation is on its way; what serves is of the one before."""
    SCALING = "Scaling"
    """Replicas are added or taken away."""
    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    """Replicas wait for pods that do not fit anywhere. Add nodes, ask for less, or edit back; what served before goes
    on."""
    NEW_GENERATION_AVAILABLE = "NewGenerationAvailable"
    """The last change is out."""
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    """Nothing moved for `rollout.progressDeadlineSeconds`; the operator goes on trying. The other conditions say what
    it waits for."""
    WAITING = "Waiting"
    """It waits for what another condition names."""
    # Degradations
    AS_ASKED = "AsAsked"
    """Nothing is missing."""
    REPLICAS_MISSING = "ReplicasMissing"
    """Some replicas do not run; the others answer."""
    OLD_GENERATION_SERVING = "OldGenerationServing"
    """The current generation cannot be served, so the one before is."""
    DRIFT_FIGHT = "DriftFight"
    """Somebody puts another configuration into Serve again and again. The operator sets it back three times in ten
    minutes and then waits. Find who else writes to this Ray, and let only one do it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a condition says now."""

    state: State
    reason: str
    message: str = ""

    @property
    def true(self) -> bool:
        return self.state is State.TRUE


@dataclass(frozen=True, slots=True)
class Condition:
    """As it stands in a status. ``since`` is when its state last changed."""

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


def follow(
    before: Mapping[str, Condition], verdicts: Mapping[Type, Verdict], generation: int, now: float
) -> tuple[Condition, ...]:
    """Returns the conditions in the order of ``verdicts``; ``since`` moves only where the state does."""
    made = []
    for kind, verdict in verdicts.items():
        last = before.get(kind)
        same = last is not None and last.state is verdict.state and last.since is not None
        since = last.since if last is not None and same else now
        made.append(Condition(kind, verdict.state, verdict.reason, verdict.message, generation, since))
    return tuple(made)


def newly(before: Mapping[str, Condition], after: Iterable[Condition]) -> tuple[Condition, ...]:
    """Returns the conditions that say another thing than before: another state or another reason."""
    return tuple(
        condition
        for condition in after
        if (last := before.get(condition.type)) is None
        or (last.state, last.reason) != (condition.state, condition.reason)
    )


def document(condition: Condition, at: str) -> dict[str, Any]:
    """Returns it as Kubernetes has it; ``at`` is ``since`` in RFC 3339."""
    return {
        "type": str(condition.type),
        "status": str(condition.state),
        "observedGeneration": condition.generation,
        "lastTransitionTime": at,
        "reason": str(condition.reason),
        "message": condition.message,
    }
