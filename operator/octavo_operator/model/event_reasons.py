"""Reasons of Events that are not a condition's: those are told under the condition's own.

The text under each says what it means and what to do; ``docs/troubleshooting.md`` is made from it.
"""

from enum import StrEnum


class EventReason(StrEnum):
    # Type Normal
    RAY_CLUSTER_CREATED = "RayClusterCreated"
    """A Ray cluster is made; its pods come next. Nothing to do."""
    SERVE_CONFIG_APPLIED = "ServeConfigApplied"
    """The spec was put into Ray Serve, which starts, changes or replaces replicas. Nothing to do."""
    SERVE_CONFIG_RESTORED = "ServeConfigRestored"
    """Ray Serve had lost everything, most often with its head, and got the application again. If it comes often, look
    why the head dies; `gcsFaultTolerance` keeps Serve's state."""
    SCALED = "Scaled"
    """Engine replicas are added or taken away because the spec asks for another number. Nothing to do."""
    ROLLOUT_COMPLETE = "RolloutComplete"
    """The current generation serves. Nothing to do."""
    TRAFFIC_SWITCHED = "TrafficSwitched"
    """The Service selects the new Ray cluster; the old one ends its streams and is deleted. Nothing to do."""
    SUSPENDED = "Suspended"
    """Everything has been stopped, as `spec.suspend` asks."""
    DEPLOY_RETRIED = "DeployRetried"
    """An application that failed to deploy was put again after five minutes, in case the reason was not in the spec."""
    DRIFT_CORRECTED = "DriftCorrected"
    """Somebody changed what the operator looks after, or left our application out of what they put into Serve, and it
    was set back. Change the ServingDeployment instead."""
    # Type Warning
    INTERRUPTING_SERVICE = "InterruptingService"
    """What serves is about to be stopped before its successor starts, so no request is answered meanwhile. The message
    says why. With `rollout.strategy: NewCluster` a change cuts nothing, where there is room for both clusters."""
    CLEANUP_ABANDONED = "CleanupAbandoned"
    """A deleted resource was let go although its application may still be in the external Ray. If that Ray lives, take
    the application out there."""
    # Type Warning, of a step that failed
    RAY_UNREACHABLE = "RayUnreachable"
    """Ray's dashboard gives no answer that is of use. Replicas may well serve on. It heals by itself when the head
    comes back; if it lasts, look at the head pod, at network policies, or at the address in external mode."""
    RAY_AUTH_FAILED = "RayAuthFailed"
    """Ray refuses the token, or wants one. Put the right one into the Secret that `rayCluster.external.authSecretRef`
    names."""
    RAY_INCOMPATIBLE = "RayIncompatible"
    """That Ray has another version than this Octavo needs, or no Serve. Install there what the message names."""
    SERVE_CONFIG_REFUSED = "ServeConfigRefused"
    """Ray Serve takes the configuration for wrong, and would again. The log of Ray's dashboard says why."""
    APPLICATION_NAME_CONFLICT = "ApplicationNameConflict"
    """Serve has an application of this name, or with this route, that is not ours; it is not touched. Rename the
    resource, or delete that application."""
    SERVE_BUSY = "ServeBusy"
    """Serve does not say just now how another application was deployed, and a change would lose that one. Wait."""
    FORBIDDEN = "Forbidden"
    """RBAC, a quota or an admission plugin does not let the operator do it. The message has the API server's words; for
    RBAC compare with the chart's Role."""
    REJECTED = "Rejected"
    """The API server takes an object for invalid, most often for a field that the spec passes on to pods. Correct
    it."""
    KIND_MISSING = "KindMissing"
    """The API server does not know a kind: its definition was removed, or KubeRay is not installed."""
    NOT_FOUND = "NotFound"
    """An object that was to be changed is gone. The next look makes what is missing."""
    TOO_MANY_REQUESTS = "TooManyRequests"
    """The API server asks to wait, and the operator does."""
    UNAVAILABLE = "Unavailable"
    """The API server did not answer, or not in time. What is served goes on; look at the API server if it lasts."""
