"""The contract of a prefix index.

A *slot* is a small integer that stands for one replica; a *mask* is an integer with a bit for each slot. Keys are the
low 64 bits of block hashes (``octavo_api.blocks``), of every ``stride``-th block of a chain.

What a replica holds is prefix-closed: with a block it holds every block before it in the chain. So along one chain the
mask of the replicas that hold block *i* can only lose bits as *i* grows, and whoever implements the contract may
bisect. ``octavo_router.routing.feed`` keeps it so by never applying events after a gap.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

WORD = 2**64


@dataclass(frozen=True, slots=True)
class Digest:
    """All held keys in two numbers: xor, and sum modulo 2^64."""

    xor: int = 0
    sum: int = 0


class Hit(NamedTuple):
    """The slots in ``mask`` hold exactly the first ``depth`` keys of the chain that was looked up."""

    mask: int
    depth: int


class PrefixIndex(Protocol):
    """Slots, their keys, and the question who holds how much of a chain."""

    @property
    def path_gaps(self) -> int:
        """How often an audited lookup found a hole in what a replica holds of a chain: a defect somewhere."""

    @property
    def num_keys(self) -> int:
        """Distinct keys held by anyone, slots that wait for the sweep included."""

    def add_slot(self) -> int:
        """Returns a free slot, which is not live yet."""

    def drop_slot(self, slot: int) -> None:
        """Takes a slot out of all answers at once, in O(1); ``sweep`` forgets its keys, then the slot is free."""

    def sweep(self, max_keys: int) -> int:
        """Forgets up to ``max_keys`` keys of dropped slots; returns how many it forgot."""

    def set_live(self, slot: int, live: bool) -> None:
        """Shows a slot in answers, or hides it; O(1)."""

    def store(self, slot: int, keys: Iterable[int]) -> None:
        """Adds keys to what the slot holds; those that it holds already change nothing."""

    def remove(self, slot: int, keys: Iterable[int]) -> int:
        """Takes keys away; returns how many of them the slot did not hold."""

    def replace(self, slot: int, keys: Iterable[int]) -> None:
        """Makes ``keys`` all that the slot holds."""

    def holds(self, slot: int, key: int) -> bool: ...

    def digest(self, slot: int) -> Digest:
        """O(1)."""

    def num_held(self, slot: int) -> int:
        """O(1)."""

    def lookup(self, keys: Sequence[int]) -> list[Hit]:
        """Returns every live slot that holds the first key, each in one ``Hit``, deepest first."""

    def take_suspects(self) -> int:
        """Returns the mask of slots in which an audit found a hole since the last call."""
