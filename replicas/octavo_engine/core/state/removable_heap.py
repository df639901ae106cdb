"""A heap of keys from which any key can be removed."""

from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Any)


class RemovableHeap(Generic[K]):
    """Distinct, ordered keys. A caller keeps what belongs to a key, so that nothing of it stays here.

    Removal only forgets a key. Its place in the heap goes when it comes first, or when such places outnumber the keys.
    """

    def __init__(self) -> None:
        self._heap: list[K] = []
        self._keys: set[K] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def push(self, key: K) -> None:
        """Add a key that is not held."""
        self._keys.add(key)
        heappush(self._heap, key)

    def first(self) -> K | None:
        """Return the least key, which stays."""
        while self._heap and self._heap[0] not in self._keys:
            heappop(self._heap)
        return self._heap[0] if self._heap else None

    def discard(self, key: K) -> None:
        """Remove a key if it is held."""
        self._keys.discard(key)
        if len(self._heap) > 2 * len(self._keys) + 16:
            self._heap = list(self._keys)
            heapify(self._heap)
