"""A dict from key to mask, for up to some millions of keys in one process.

A key and its holder take about 130 bytes. A lookup probes every √depth-th key at once (a *comb*, at the speed of C). It
bisects between two teeth if the mask changes. That makes √depth + changes · log √depth probes. Masks are interned, so
that keys with the same holders share one integer.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import repeat
from math import isqrt
from operator import xor

from octavo_api.blocks import WORD, Digest
from octavo_router.routing.index.base import Hit

AUDIT_EVERY = 128
"""Number of lookups of which one walks the whole chain, to check that the bisection was right."""

MAX_INTERNED_MASKS = 2**16


class _Slot:
    __slots__ = ("held", "sum", "xor")

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.xor = 0
        self.sum = 0


class DictIndex:
    """The ``PrefixIndex`` of one gateway process."""

    def __init__(self, *, audit_every: int = AUDIT_EVERY) -> None:
        self._masks: dict[int, int] = {}
        self._interned: dict[int, int] = {}
        self._slots: dict[int, _Slot] = {}
        self._dropped: dict[int, set[int]] = {}
        self._free: list[int] = []
        self._next_slot = 0
        self._live = 0
        self._audit_every = audit_every
        self._until_audit = audit_every
        self._suspects = 0
        self.path_gaps = 0

    @property
    def num_keys(self) -> int:
        return len(self._masks)

    def add_slot(self) -> int:
        if self._free:
            self._free.sort(reverse=True)
            slot = self._free.pop()
        else:
            slot = self._next_slot
            self._next_slot += 1
        self._slots[slot] = _Slot()
        return slot

    def drop_slot(self, slot: int) -> None:
        held = self._slots.pop(slot).held
        self.set_live(slot, False)
        if held:
            self._dropped[slot] = held
        else:
            self._free.append(slot)

    def sweep(self, max_keys: int) -> int:
        swept = 0
        while self._dropped and swept < max_keys:
            slot, keys = next(iter(self._dropped.items()))
            batch = [keys.pop() for _ in range(min(len(keys), max_keys - swept))]
            self._clear_bit(1 << slot, batch)
            swept += len(batch)
            if not keys:
                del self._dropped[slot]
                self._free.append(slot)
        return swept

    def set_live(self, slot: int, live: bool) -> None:
        if live:
            self._live |= 1 << slot
        else:
            self._live &= ~(1 << slot)

    def store(self, slot: int, keys: Iterable[int]) -> None:
        state = self._slots[slot]
        new = set(keys)
        new -= state.held
        state.held |= new
        self._account(state, new, 1)
        self._set_bit(1 << slot, new)

    def remove(self, slot: int, keys: Iterable[int]) -> int:
        state = self._slots[slot]
        requested = set(keys)
        removed = requested & state.held
        state.held -= removed
        self._account(state, removed, -1)
        self._clear_bit(1 << slot, removed)
        return len(requested) - len(removed)

    def replace(self, slot: int, keys: Iterable[int]) -> None:
        wanted = set(keys)
        self.remove(slot, self._slots[slot].held - wanted)
        self.store(slot, wanted)

    def holds(self, slot: int, key: int) -> bool:
        return key in self._slots[slot].held

    def digest(self, slot: int) -> Digest:
        state = self._slots[slot]
        return Digest(state.xor, state.sum)

    def num_held(self, slot: int) -> int:
        return len(self._slots[slot].held)

    def lookup(self, keys: Sequence[int]) -> list[Hit]:
        get = self._masks.get
        live = self._live
        end = len(keys)
        if not end or not get(keys[0], 0) & live:
            return []
        hits = []
        mask, step = 0, isqrt(end)
        comb = [found & live for found in map(get, keys[::step], repeat(0))]
        for tooth in range(len(comb) - 1, -1, -1):
            start = tooth * step
            while mask != comb[tooth]:
                low, high = start, end - 1
                while low < high:
                    middle = (low + high + 1) >> 1
                    if get(keys[middle], 0) & live != mask:
                        low = middle
                    else:
                        high = middle - 1
                wider = get(keys[low], 0) & live
                hits.append(Hit(wider & ~mask, low + 1))
                end, mask = low, wider
            end = start
        self._until_audit -= 1
        if not self._until_audit:
            self._until_audit = self._audit_every
            self._audit(keys)
        return hits

    def take_suspects(self) -> int:
        suspects, self._suspects = self._suspects, 0
        return suspects

    def _audit(self, keys: Sequence[int]) -> None:
        holes, allowed = 0, -1
        for key in keys:
            mask = self._masks.get(key, 0) & self._live
            holes |= mask & ~allowed
            allowed &= mask
        if holes:
            self.path_gaps += 1
            self._suspects |= holes

    @staticmethod
    def _account(state: _Slot, keys: set[int], sign: int) -> None:
        state.xor = reduce(xor, keys, state.xor)
        state.sum = (state.sum + sign * sum(keys)) % WORD

    def _set_bit(self, bit: int, keys: set[int]) -> None:
        """Set a bit in the masks of ``keys``.

        Keys without a holder, most of a snapshot, are inserted at the speed of C.
        """
        masks, intern = self._masks, self._intern
        shared = [key for key in keys if key in masks]
        masks.update(dict.fromkeys(keys.difference(shared), bit))
        for key in shared:
            masks[key] = intern(masks[key] | bit)

    def _clear_bit(self, bit: int, keys: Iterable[int]) -> None:
        masks, intern = self._masks, self._intern
        for key in keys:
            mask = masks[key] & ~bit
            if mask:
                masks[key] = intern(mask)
            else:
                del masks[key]

    def _intern(self, mask: int) -> int:
        if len(self._interned) > MAX_INTERNED_MASKS:
            self._interned.clear()
        return self._interned.setdefault(mask, mask)
