"""Reasons of Events that are not a condition's. An Event about a condition has the condition's own reason.

The text under each reason gives its meaning and the remedy; ``docs/troubleshooting.md`` is generated from these texts.
"""

from enum import StrEnum


class EventReason(StrEnum):
    # Type Normal
    RAY_CLUSTER_CREATED = "RayClusterCreated"
    """The operator created a Ray cluster; its pods follow. Nothing to do."""
    SERVE_CONFIG_APPLIED = "ServeConfigApplied"
    """The operator deployed the spec to Ray Serve, which starts, changes or replaces replicas. Nothing to do."""
    SERVE_CONFIG_RESTORED = "ServeConfigRestored"
    """Ray Serve had lost everything, most often with its head, and the operator deployed the application again. If it
    comes often, look why the head dies; `gcsFaultTolerance` keeps Serve's state."""
    SCALED = "Scaled"
    """Engine replicas are added or removed because the spec asks for another number. Nothing to do."""
    ROLLOUT_COMPLETE = "RolloutComplete"
    """The current generation serves. Nothing to do."""
    TRAFFIC_SWITCHED = "TrafficSwitched"
    """The Service selects the new Ray cluster; the old one drains and is deleted. Nothing to do."""
    SUSPENDED = "Suspended"
    """Everything has stopped, as `spec.suspend` asks."""
    DEPLOY_RETRIED = "DeployRetried"
    """The operator retried a failed deployment after five minutes, in case the reason was not in the spec."""
    DRIFT_CORRECTED = "DriftCorrected"
    """Another client changed an object of the operator, or removed our application from Serve, and the operator
    reverted the change. Change the ServingDeployment instead."""
    # Type Warning
    INTERRUPTING_SERVICE = "InterruptingService"
    """The serving cluster stops before its successor starts, so no request is answered in between. The message gives
    the reason. With `rollout.strategy: NewCluster` a change interrupts nothing, if there is room for both clusters."""
    CLEANUP_ABANDONED = "CleanupAbandoned"
    """A deleted resource was released although its application may still be in the external Ray. If that Ray lives,
    delete the application there."""
    # Type Warning, of a step that failed
    RAY_UNREACHABLE = "RayUnreachable"
    """Ray's dashboard gives no valid answer, to a step or to a look. Replicas may still serve. The operator retries
    until the head comes back. If it lasts, look at the head pod, at network policies, or at the address in external
    mode."""
    RAY_AUTH_FAILED = "RayAuthFailed"
    """Ray rejects the token, or requires one. Put the right token into the Secret that
    `rayCluster.external.authSecretRef` names."""
    RAY_INCOMPATIBLE = "RayIncompatible"
    """That Ray has another version than this Octavo needs, or no Serve. Install there what the message names."""
    SERVE_CONFIG_REFUSED = "ServeConfigRefused"
    """Ray Serve rejects the configuration, and would reject it again. The log of Ray's dashboard has the reason."""
    APPLICATION_NAME_CONFLICT = "ApplicationNameConflict"
    """Serve has a foreign application of this name, or with this route. The operator does not change it. Rename the
    resource, or delete that application."""
    SERVE_BUSY = "ServeBusy"
    """Serve does not report the configuration of another application at present, and a PUT without it would delete
    that application. The operator retries; nothing to do."""
    FORBIDDEN = "Forbidden"
    """RBAC, a quota or an admission plugin forbids the operation. The message quotes the API server; for RBAC compare
    with the chart's Role."""
    REJECTED = "Rejected"
    """The API server rejects an object as invalid, most often for a field that the spec passes on to pods. Correct the
    field."""
    KIND_MISSING = "KindMissing"
    """The API server does not know a kind: its definition was removed, or KubeRay is not installed."""
    NOT_FOUND = "NotFound"
    """An object that was to be changed is gone. The next reconcile creates missing objects."""
    TOO_MANY_REQUESTS = "TooManyRequests"
    """The API server throttles the operator, which waits as long as the server requires. Nothing to do."""
    UNAVAILABLE = "Unavailable"
    """The API server did not answer, or not in time. Running models continue to serve; look at the API server if it
    lasts."""
