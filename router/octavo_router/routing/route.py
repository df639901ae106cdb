"""The decision for one request: the chosen replica, and the reason."""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a replica was chosen."""

    HIT = "hit"
    """It holds more of the prefix than any other."""
    PREDICTED = "predicted"
    """A request on its way there will have left the prefix."""
    SPILL = "spill"
    """Another one holds more, but the answer would come no sooner from there."""
    COLD = "cold"
    """No replica holds any of it."""
    RETRY = "retry"
    """The replica chosen before went away, or took no request."""
    POLICY = "policy"
    """The policy does not look at prefixes."""
    DEGRADED = "degraded"
    """No replica's load is known, or the decision failed: one that can be reached was taken."""


@dataclass(frozen=True, slots=True)
class Route:
    """A decision. ``cost_s`` is the predicted cost in seconds, ``predicted_cached_tokens`` what the router believes
    the replica holds of the prompt.
    """

    replica: str
    policy: str
    reason: Reason
    predicted_cached_tokens: int
    cost_s: float
