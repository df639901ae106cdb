"""The queue of waiting sequences, and its order."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Protocol

from octavo_api.settings import SchedulingPolicy
from octavo_engine.core.state.removable_heap import RemovableHeap
from octavo_engine.core.state.sequence import OrderKey, Sequence

PRIORITY_STEP_S = 10.0
"""Seconds of waiting that outweigh a difference of 1 in priority."""


class OrderPolicy(Protocol):
    """Order in which sequences wait and run. Preemption takes sequences from its end."""

    def key(self, priority: int, arrived_at: float, arrival: int) -> OrderKey:
        """Return the key of a request's first choice: requests with smaller keys go first."""
        ...


class FirstComeFirstServed:
    def key(self, priority: int, arrived_at: float, arrival: int) -> OrderKey:
        return (0.0, arrival, 0)


class LowestPriorityValueFirst:
    """Priority that ages: a step of priority is worth ``PRIORITY_STEP_S`` seconds of waiting.

    So an endless stream of urgent requests delays another request by a bounded time. A key never changes, because all
    requests age alike. A running request keeps its row and gets its tokens, unless the blocks run out.
    """

    def key(self, priority: int, arrived_at: float, arrival: int) -> OrderKey:
        return (arrived_at + PRIORITY_STEP_S * priority, arrival, 0)


ORDER_POLICIES: dict[SchedulingPolicy, OrderPolicy] = {
    SchedulingPolicy.FCFS: FirstComeFirstServed(),
    SchedulingPolicy.PRIORITY: LowestPriorityValueFirst(),
}


class WaitingQueue:
    """Sequences by their key. Keys never change, so a preempted sequence comes back before all later arrivals."""

    def __init__(self) -> None:
        self._order: RemovableHeap[OrderKey] = RemovableHeap()
        self._waiting: dict[OrderKey, tuple[Sequence, int]] = {}
        """Each sequence with its uncached tokens, the oldest check first."""
        self.uncached_tokens = 0
        """Tokens of all waiting sequences that the prefix cache did not hold at the last check."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return (seq for seq, _ in self._waiting.values())

    def __contains__(self, seq: Sequence) -> bool:
        return seq.key in self._waiting

    def push(self, seq: Sequence, uncached_tokens: int) -> None:
        self._order.push(seq.key)
        self._waiting[seq.key] = seq, uncached_tokens
        self.uncached_tokens += uncached_tokens

    def peek(self) -> Sequence | None:
        """Return the next sequence, which stays in the queue."""
        key = self._order.first()
        return None if key is None else self._waiting[key][0]

    def discard(self, seq: Sequence) -> None:
        """Remove ``seq`` if it waits."""
        if (removed := self._waiting.pop(seq.key, None)) is not None:
            self.uncached_tokens -= removed[1]
            self._order.discard(seq.key)

    def refresh(self, limit: int, uncached_tokens: Callable[[Sequence], int]) -> None:
        """Check again the ``limit`` sequences whose last check is the longest ago."""
        for key in list(islice(self._waiting, limit)):
            seq, previous = self._waiting.pop(key)
            self._waiting[key] = seq, uncached_tokens(seq)
            self.uncached_tokens += self._waiting[key][1] - previous
