"""How many engine replicas there should be: Serve calls ``policy`` ten times a second, in its controller.

Each engine reports which share of one replica its load is, by targets that it takes up live; the policy adds the shares
up. So nothing in the policy's own configuration ever changes, which would replace every replica.

The controller gets this module pickled by value: it imports nothing of ours.
"""

import math
from collections.abc import Collection
from typing import Any

SHARE = "octavo_share"
"""What an engine reports by ``record_autoscaling_stats``."""

TOLERANCE = 0.1
"""Share of one replica that is not worth another replica, as in Kubernetes' HorizontalPodAutoscaler."""

ACTIVE = 0.01
"""Least share of an engine that has computed anything since its last report, however little there is to see now."""

_IDLE = ACTIVE / 2

GRACE_S = 3.0
"""Replicas that should be there and are not count for so long: some take up a configuration, which ends in a moment.
Those that wait for a place do not count for ever, or a count that found none could never fall."""

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
    """Returns which share of one replica is used: 1.0 at its targets, whichever of the two is nearer.

    ``requests`` run or wait; ``blocks_held`` of ``blocks`` are held by running requests: what could be evicted does not
    count. ``active`` says whether anything was computed since the last report.
    """
    cache = 100 * blocks_held / (blocks * target_cache_percent) if blocks else 0.0
    return max(requests / target_requests, cache, ACTIVE if active else 0.0)


def desired_replicas(shares: Collection[float], *, silent: int, target: float, minimum: int, maximum: int) -> int:
    """Returns the count at which each replica would have ``target`` shares.

    While ``silent`` ones say nothing none is taken away, since any of them may carry the load; they ask for no other.
    As long as anything is asked for, one replica stays.
    """
    known = sum(shares) / target
    wanted = max(math.ceil(known - TOLERANCE), 1 if known > _IDLE else 0)
    kept = len(shares) + silent if silent / target > _IDLE else 0
    return min(max(wanted, kept, minimum), maximum)


def policy(context: Any) -> tuple[int, dict[str, Any]]:
    """Serve's autoscaling policy (``ray.serve.config.AutoscalingContext`` → count, state).

    Serve asks for a first replica itself while a call waits for one; bounds and delays are Serve's as well. It counts
    replicas that take up a configuration as not running; and while none runs, it heeds no delay.
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
