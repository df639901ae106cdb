"""The queue of waiting sequences, and its order."""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Protocol

from octavo_api.settings import SchedulingPolicy
from octavo_engine.core.state.sequence import OrderKey, Sequence


class OrderPolicy(Protocol):
    """Order in which sequences wait and run. Preemption takes sequences from its end."""

    def key(self, priority: int, arrival: int, choice: int) -> OrderKey: ...


class FirstComeFirstServed:
    def key(self, priority: int, arrival: int, choice: int) -> OrderKey:
        return (0, arrival, choice)


class LowestPriorityValueFirst:
    """Strict priority. Behind an endless stream of more urgent requests, only its deadline ends a waiting request.

    A running request keeps its row and gets its tokens, unless the blocks run out.
    """

    def key(self, priority: int, arrival: int, choice: int) -> OrderKey:
        return (priority, arrival, choice)


ORDER_POLICIES: dict[SchedulingPolicy, OrderPolicy] = {
    SchedulingPolicy.FCFS: FirstComeFirstServed(),
    SchedulingPolicy.PRIORITY: LowestPriorityValueFirst(),
}


class WaitingQueue:
    """Sequences by their key. Keys never change, so a preempted sequence comes back before all later arrivals.

    Removal only marks a sequence. The queue drops marked sequences when they come first, or when they outnumber the
    rest.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[OrderKey, Sequence]] = []
        self._uncached: dict[Sequence, int] = {}
        self.uncached_tokens = 0
        """Tokens of all waiting sequences that the prefix cache did not hold at the last check."""

    def __len__(self) -> int:
        return len(self._uncached)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._uncached)

    def __contains__(self, seq: Sequence) -> bool:
        return seq in self._uncached

    def push(self, seq: Sequence, uncached_tokens: int) -> None:
        heappush(self._heap, (seq.key, seq))
        self._uncached[seq] = uncached_tokens
        self.uncached_tokens += uncached_tokens

    def peek(self) -> Sequence | None:
        """Return the next sequence, which stays in the queue."""
        heap, waiting = self._heap, self._uncached
        while heap and heap[0][1] not in waiting:
            heappop(heap)
        return heap[0][1] if heap else None

    def discard(self, seq: Sequence) -> None:
        """Remove ``seq`` if it waits."""
        self.uncached_tokens -= self._uncached.pop(seq, 0)
        if len(self._heap) > 2 * len(self._uncached) + 16:
            self._heap = [(seq.key, seq) for seq in self._uncached]
            heapify(self._heap)

    def refresh(self, limit: int, uncached_tokens: Callable[[Sequence], int]) -> None:
        """Check again the ``limit`` sequences whose last check is the longest ago."""
        for seq in list(islice(self._uncached, limit)):
            self.uncached_tokens -= self._uncached.pop(seq)
            self._uncached[seq] = uncached_tokens(seq)
            self.uncached_tokens += self._uncached[seq]
