"""Growing, jittered delays after failures, one series per key."""

import random
from collections.abc import Hashable

BASE_S, CAP_S = 1.0, 60.0
"""Seconds. The cap is short: a look is cheap, and chance failures must not leave a deployment alone for long."""
_MAX_DOUBLINGS = 16


class Backoff:
    """Full jitter: the n-th delay in a row is drawn from ``[0, min(cap, base * 2**n)]``.

    The counts of failures only set the delays, so they may be forgotten at any time.
    """

    def __init__(self, base: float = BASE_S, cap: float = CAP_S, rng: random.Random | None = None) -> None:
        self._base = base
        self._cap = cap
        self._rng = rng or random.Random()
        self._failures: dict[Hashable, int] = {}

    def next(self, key: Hashable) -> float:
        """Count a failure of ``key`` and return the seconds to wait."""
        failures = self._failures.get(key, 0) + 1
        self._failures[key] = failures
        return self._rng.uniform(0, min(self._cap, self._base * 2 ** min(failures, _MAX_DOUBLINGS)))

    def reset(self, key: Hashable) -> None:
        self._failures.pop(key, None)

    def failures(self, key: Hashable) -> int:
        return self._failures.get(key, 0)
