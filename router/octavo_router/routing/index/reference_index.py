"""The simplest implementation of the contract. Tests compare faster ones with it."""

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import xor

from octavo_api.blocks import WORD, Digest
from octavo_router.routing.index.base import Hit


class ReferenceIndex:
    """One set per slot. Every answer is computed from scratch."""

    def __init__(self) -> None:
        self._held: dict[int, set[int]] = {}
        self._dropped: dict[int, set[int]] = {}
        self._live: set[int] = set()
        self.path_gaps = 0

    @property
    def num_keys(self) -> int:
        return len(set().union(*self._held.values(), *self._dropped.values()))

    def add_slot(self) -> int:
        slot = next(slot for slot in range(len(self._held) + len(self._dropped) + 1) if self._is_free(slot))
        self._held[slot] = set()
        return slot

    def _is_free(self, slot: int) -> bool:
        return slot not in self._held and slot not in self._dropped

    def drop_slot(self, slot: int) -> None:
        keys = self._held.pop(slot)
        if keys:
            self._dropped[slot] = keys
        self._live.discard(slot)

    def sweep(self, max_keys: int) -> int:
        swept = 0
        for slot in list(self._dropped):
            keys = self._dropped[slot]
            while keys and swept < max_keys:
                keys.pop()
                swept += 1
            if not keys:
                del self._dropped[slot]
        return swept

    def set_live(self, slot: int, live: bool) -> None:
        (self._live.add if live else self._live.discard)(slot)

    def store(self, slot: int, keys: Iterable[int]) -> None:
        self._held[slot].update(keys)

    def remove(self, slot: int, keys: Iterable[int]) -> int:
        requested = set(keys)
        missing = len(requested - self._held[slot])
        self._held[slot] -= requested
        return missing

    def replace(self, slot: int, keys: Iterable[int]) -> None:
        self._held[slot] = set(keys)

    def holds(self, slot: int, key: int) -> bool:
        return key in self._held[slot]

    def digest(self, slot: int) -> Digest:
        held = self._held[slot]
        return Digest(reduce(xor, held, 0), sum(held) % WORD)

    def num_held(self, slot: int) -> int:
        return len(self._held[slot])

    def lookup(self, keys: Sequence[int]) -> list[Hit]:
        masks: dict[int, int] = {}
        for slot in self._live:
            depth = 0
            while depth < len(keys) and keys[depth] in self._held[slot]:
                depth += 1
            if depth:
                masks[depth] = masks.get(depth, 0) | 1 << slot
        return [Hit(masks[depth], depth) for depth in sorted(masks, reverse=True)]

    def take_suspects(self) -> int:
        return 0
