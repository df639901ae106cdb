"""Preemption: the choice of a victim when the block pool is empty, and the release of its blocks."""

from collections import abc
from typing import Protocol

from octavo_engine.core.kv.manager import KVCacheManager
from octavo_engine.core.state.sequence import Sequence


class VictimPolicy(Protocol):
    def choose(self, running: abc.Sequence[Sequence], first: int) -> int:
        """Return the index of the victim, at least ``first``: sequences before it are in the plan already.

        ``running`` is in the order of the waiting queue's policy.
        """


class LastInOrder:
    """The last sequence in order, so that the first always progresses.

    The victim is the sequence in need itself if it is the last.
    """

    def choose(self, running: abc.Sequence[Sequence], first: int) -> int:
        return len(running) - 1


class PreemptionMode(Protocol):
    def release(self, seq: Sequence, kv: KVCacheManager) -> None:
        """Take the blocks from ``seq`` and leave it ready to be admitted again."""


class Recompute:
    """Release of the KV, to compute it again later.

    Published blocks stay in the prefix cache until another sequence needs them. So a resumed sequence often recomputes
    only the partial last block.
    """

    def release(self, seq: Sequence, kv: KVCacheManager) -> None:
        seq.num_discarded_tokens = seq.num_computed_tokens
        kv.release(seq)
