"""Prefixes that replicas will hold soon, because a request with them is on its way there.

Without this overlay, requests of a burst that share a new prefix scatter before the first block is stored. An entry is
a guess. It lives a few seconds and never longer than its replica.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

from octavo_router.routing.index import Hit

MAX_ENTRIES = 2**17

POSITIONS = (*range(1, 17), *(2**octave * eighth // 8 for octave in range(4, 24) for eighth in range(9, 17)))
"""Positions of predictions: every position up to 16, then eight between a power of two and the next.

So prompts of any length meet at the same positions. A shared prefix is known to an eighth or better. A prediction is
some dozens of entries, however long the prompt is.
"""


class Overlay:
    """Map from key to mask of slots, for ``POSITIONS`` of each chain and its last position."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def record(self, keys: Sequence[int], held: int, slot: int, now: float, ttl: float) -> None:
        """Predict that ``slot`` will hold ``keys``. It holds the first ``held`` of them already."""
        entries, bit, expires = self._entries, 1 << slot, now + ttl
        for depth in _depths(len(keys)):
            if depth <= held:
                break
            mask, until = entries.pop(keys[depth - 1], (0, 0.0))
            entries[keys[depth - 1]] = (mask | bit, max(until, expires)) if until > now else (bit, expires)
        self._purge(now)

    def lookup(self, keys: Sequence[int], now: float) -> list[Hit]:
        """Return each predicted slot once with the deepest position predicted for it, deepest first."""
        hits: list[Hit] = []
        if not self._entries:
            return hits
        seen = 0
        depths = _depths(len(keys))
        for depth, entry in zip(depths, map(self._entries.get, [keys[depth - 1] for depth in depths]), strict=True):
            if entry is not None and entry[1] > now and entry[0] & ~seen:
                hits.append(Hit(entry[0] & ~seen, depth))
                seen |= entry[0]
        return hits

    def forget(self, slot: int) -> None:
        """Drop all predictions for a slot."""
        bit = 1 << slot
        self._entries = {key: (mask & ~bit, until) for key, (mask, until) in self._entries.items() if mask & ~bit}

    def _purge(self, now: float) -> None:
        """Delete old entries. Entries are in the order of their last record, so old ones are in front."""
        entries = self._entries
        while entries:
            key = next(iter(entries))
            if entries[key][1] > now and len(entries) <= MAX_ENTRIES:
                break
            del entries[key]


@lru_cache(maxsize=4096)
def _depths(length: int) -> tuple[int, ...]:
    """Return the recorded positions of a chain of ``length`` keys, counted from 1, deepest first."""
    depths = POSITIONS[: bisect_right(POSITIONS, length)]
    if depths and depths[-1] != length:
        depths = (*depths, length)
    return depths[::-1]
