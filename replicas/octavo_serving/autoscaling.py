"""How many engine replicas there should be: Serve calls ``policy`` ten times a second, in its controller.

The controller gets this module pickled by value: it imports nothing of ours.
"""

import math
from collections.abc import Iterable
from typing import Any

IN_FLIGHT = "octavo_requests_in_flight"
"""What an engine reports by ``record_autoscaling_stats``: requests running and waiting."""

TOLERANCE = 0.1
"""Share of one replica's target that is not worth another replica, as in Kubernetes' HorizontalPodAutoscaler."""


def desired_replicas(in_flight: Iterable[float], *, target: float, minimum: int, maximum: int) -> int:
    """Returns the count at which each replica would have ``target`` requests in flight."""
    wanted = math.ceil(sum(in_flight) / target - TOLERANCE)
    return min(max(wanted, minimum), maximum)


def policy(context: Any) -> tuple[int, dict[str, Any]]:
    """Serve's autoscaling policy (``ray.serve.config.AutoscalingContext`` → count, state)."""
    reported = (context.aggregated_metrics or {}).get(IN_FLIGHT) or {}
    count = desired_replicas(
        reported.values(),
        target=context.config.target_ongoing_requests,
        minimum=context.capacity_adjusted_min_replicas,
        maximum=context.capacity_adjusted_max_replicas,
    )
    return count, {}
