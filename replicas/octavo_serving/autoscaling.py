"""How many engine replicas there should be: Serve calls ``policy`` ten times a second, in its controller.

Each engine reports which share of one replica its load is, by targets that it takes up live; the policy adds the shares
up. So nothing in the policy's own configuration ever changes, which would replace every replica.

The controller gets this module pickled by value: it imports nothing of ours.
"""

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

SHARE = "octavo_share"
"""What an engine reports by ``record_autoscaling_stats``."""

TOLERANCE = 0.1
"""Share of one replica that is not worth another replica, as in Kubernetes' HorizontalPodAutoscaler."""

ACTIVE = 0.01
"""Least share of an engine that has computed anything since its last report, however little there is to see now."""

_IDLE = ACTIVE / 2

FORGET_S = 3.0
"""A replica that is not announced for a moment, because it takes up a configuration, counts on for so long."""

_SHARES = "octavo_shares"


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


def desired_replicas(shares: Iterable[float], *, unknown: int, target: float, minimum: int, maximum: int) -> int:
    """Returns the count at which each replica would have ``target`` shares.

    ``unknown`` replicas have not reported: each may be needed, none asks for another. As long as anything is asked for,
    one replica stays.
    """
    load = (sum(shares) + unknown) / target
    wanted = max(math.ceil(load - TOLERANCE), 1 if load > _IDLE else 0)
    return min(max(wanted, minimum), maximum)


Seen = Mapping[Hashable, tuple[float, float]]
"""By replica: its share, and when it was last reported."""


def remember(reported: Mapping[Hashable, float], before: Seen, now: float) -> Seen:
    """Returns what was reported now, and what was reported lately of replicas that are not there now."""
    lately = {name: entry for name, entry in before.items() if now - entry[1] < FORGET_S}
    return {**lately, **{name: (share, now) for name, share in reported.items()}}


def policy(context: Any) -> tuple[int, dict[str, Any]]:
    """Serve's autoscaling policy (``ray.serve.config.AutoscalingContext`` → count, state).

    Serve asks for a first replica itself while a call waits for one; bounds and delays are Serve's as well.
    """
    reported = (context.aggregated_metrics or {}).get(SHARE) or {}
    seen = remember(reported, context.policy_state.get(_SHARES, {}), context.current_time)
    count = desired_replicas(
        (share for share, _ in seen.values()),
        unknown=context.current_num_replicas - len(reported),
        target=context.config.target_ongoing_requests,
        minimum=context.capacity_adjusted_min_replicas,
        maximum=context.capacity_adjusted_max_replicas,
    )
    return count, {_SHARES: seen}
