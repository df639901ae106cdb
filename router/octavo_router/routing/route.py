"""The decision for one request: the chosen replica, and the reason."""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """The reason for the choice of a replica."""

    HIT = "hit"
    """The replica holds more of the prefix than any other."""
    PREDICTED = "predicted"
    """A request on its way to the replica will have left the prefix there."""
    SPILL = "spill"
    """Another replica holds more, but the answer would come no sooner from there."""
    COLD = "cold"
    """No replica holds any of the prefix."""
    RETRY = "retry"
    """The replica chosen before went away, or took no request."""
    POLICY = "policy"
    """The policy does not consider prefixes."""
    DEGRADED = "degraded"
    """No replica's load is known, or the decision failed. The router chose a reachable replica."""


@dataclass(frozen=True, slots=True)
class Route:
    """A decision. ``cost_s`` is the predicted cost in seconds.

    ``predicted_cached_tokens`` is the number of prompt tokens that the replica holds, as the router predicts.
    """

    replica: str
    policy: str
    reason: Reason
    predicted_cached_tokens: int
    cost_s: float
