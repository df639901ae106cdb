"""The contract of a prefix index.

A *slot* is a small integer that stands for one replica; a *mask* is an integer with a bit for each slot. Keys are the
low 64 bits of block hashes (``octavo_api.blocks``), of every ``stride``-th block of a chain.

The keys of a replica are prefix-closed: with a block it holds every block before it in the chain. So along one chain,
the mask of the replicas that hold block *i* can only lose bits as *i* grows. An implementation may therefore bisect.
``octavo_router.routing.feed`` maintains this property, because it never applies events after a gap.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from octavo_api.blocks import Digest


class Hit(NamedTuple):
    """Result of a lookup: the slots in ``mask`` hold exactly the first ``depth`` keys of the chain."""

    mask: int
    depth: int


class PrefixIndex(Protocol):
    """Slots, their keys, and lookups of the slots that hold a prefix of a chain."""

    @property
    def path_gaps(self) -> int:
        """Number of audited lookups that found a hole in a replica's keys of a chain. A hole is a defect somewhere."""

    @property
    def num_keys(self) -> int:
        """Number of distinct keys in all slots, including slots that wait for the sweep."""

    def add_slot(self) -> int:
        """Return a free slot, which is not live yet."""

    def drop_slot(self, slot: int) -> None:
        """Remove a slot from all answers at once, in O(1). ``sweep`` forgets its keys, then the slot is free."""

    def sweep(self, max_keys: int) -> int:
        """Forget up to ``max_keys`` keys of dropped slots. Return the number of forgotten keys."""

    def set_live(self, slot: int, live: bool) -> None:
        """Show a slot in answers, or hide it, in O(1)."""

    def store(self, slot: int, keys: Iterable[int]) -> None:
        """Add keys to the slot. Keys that it holds already change nothing."""

    def remove(self, slot: int, keys: Iterable[int]) -> int:
        """Remove keys. Return the number of keys that the slot did not hold."""

    def replace(self, slot: int, keys: Iterable[int]) -> None:
        """Make ``keys`` the only keys of the slot."""

    def holds(self, slot: int, key: int) -> bool: ...

    def digest(self, slot: int) -> Digest:
        """Return the digest of the slot's keys in O(1)."""

    def num_held(self, slot: int) -> int:
        """Return the number of the slot's keys in O(1)."""

    def lookup(self, keys: Sequence[int]) -> list[Hit]:
        """Return every live slot that holds the first key, each in one ``Hit``, deepest first."""

    def take_suspects(self) -> int:
        """Return the mask of slots in which an audit found a hole since the last call."""
