"""Who gives way when the block pool runs dry, and how."""

from collections import abc
from typing import Protocol

from octavo_engine.core.kv_cache import KVCacheManager
from octavo_engine.core.request import Sequence


class VictimPolicy(Protocol):
    def choose(self, running: abc.Sequence[Sequence], first: int) -> int:
        """Returns the index of the victim, at least ``first``: those before it are in the plan already.

        ``running`` is in the order of the waiting queue's policy.
        """


class LastAdmitted:
    """The last in order, so that the first always gets on; the one in need itself if it is the last."""

    def choose(self, running: abc.Sequence[Sequence], first: int) -> int:
        return len(running) - 1


class PreemptionMode(Protocol):
    def vacate(self, seq: Sequence, kv: KVCacheManager) -> None:
        """Takes the blocks from ``seq`` and leaves it such that it can be admitted again."""


class Recompute:
    """The KV is given up. What was published stays in the prefix cache as long as nobody needs the blocks, so that
    coming back often costs only the partial last block.
    """

    def vacate(self, seq: Sequence, kv: KVCacheManager) -> None:
        seq.num_lost_tokens = seq.num_computed_tokens
        kv.release(seq)
