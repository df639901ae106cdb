"""Number of engine replicas. Serve calls ``policy`` ten times a second, in its controller.

Each engine reports its load as a share of one replica, by targets that it applies live. The policy adds the shares up.
So the policy's own configuration never changes. A change of it would replace every replica.

The controller gets this module pickled by value, so the module imports no other module of this project.
"""

import math
from collections.abc import Collection
from typing import Any

SHARE = "octavo_share"
"""Name of the value that an engine reports by ``record_autoscaling_stats``."""

TOLERANCE = 0.1
"""Share of one replica that is not worth another replica, as in Kubernetes' HorizontalPodAutoscaler."""

ACTIVE = 0.01
"""Minimum share of an engine that has computed anything since its last report, even if its load is now zero."""

_IDLE = ACTIVE / 2

GRACE_S = 3.0
"""Maximum seconds during which missing replicas count as silent ones.

Some replicas apply a configuration, which ends in a moment. Replicas that wait for a place must not count longer.
Otherwise a count without room for its replicas could never fall.
"""

_SHORT_SINCE = "octavo_short_since"


def share(
    *,
    requests: int,
    target_requests: int,
    blocks_held: int,
    blocks: int,
    target_cache_percent: int,
    active: bool,
) -> float:
    """Return the used share of one replica: 1.0 at its targets, by the target that is nearer.

    ``requests`` run or wait. Running requests hold ``blocks_held`` of ``blocks``; blocks that could be evicted do
    not count. ``active`` is True if the engine has computed anything since the last report.
    """
    cache = 100 * blocks_held / (blocks * target_cache_percent) if blocks else 0.0
    return max(requests / target_requests, cache, ACTIVE if active else 0.0)


def desired_replicas(shares: Collection[float], *, silent: int, target: float, minimum: int, maximum: int) -> int:
    """Return the count at which each replica would have ``target`` shares.

    While ``silent`` replicas report nothing, none is removed, because any of them may carry the load. They require
    no additional replica. While any load is reported, one replica stays.
    """
    known = sum(shares) / target
    wanted = max(math.ceil(known - TOLERANCE), 1 if known > _IDLE else 0)
    kept = len(shares) + silent if silent / target > _IDLE else 0
    return min(max(wanted, kept, minimum), maximum)


def policy(context: Any) -> tuple[int, dict[str, Any]]:
    """Return count and state: Serve's autoscaling policy of a ``ray.serve.config.AutoscalingContext``.

    Serve itself requests a first replica while a call waits for one. Bounds and delays are Serve's as well. Serve
    counts replicas that apply a configuration as not running. While no replica runs, Serve ignores the delays.
    """
    reported = (context.aggregated_metrics or {}).get(SHARE) or {}
    running, short = context.current_num_replicas, context.target_num_replicas - context.current_num_replicas
    since = context.policy_state.get(_SHORT_SINCE, context.current_time) if short > 0 else None
    silent = running - len(reported)
    if since is not None and (not running or context.current_time - since < GRACE_S):
        silent += short
    count = desired_replicas(
        reported.values(),
        silent=silent,
        target=context.config.target_ongoing_requests,
        minimum=context.capacity_adjusted_min_replicas,
        maximum=context.capacity_adjusted_max_replicas,
    )
    return count, {} if since is None else {_SHORT_SINCE: since}
