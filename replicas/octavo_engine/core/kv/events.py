"""Events for routers that follow the prefix cache: ordered changes, and a digest of all held blocks."""

from dataclasses import dataclass

from octavo_api.blocks import WORD, BlockHash, Digest, low64


@dataclass(frozen=True, slots=True)
class Stored:
    """Hashes that follow ``parent`` and each other in one chain; ``parent`` None is the start of a chain."""

    parent: BlockHash | None
    hashes: tuple[BlockHash, ...]


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks that are no longer held, children before parents."""

    hashes: tuple[BlockHash, ...]


@dataclass(frozen=True, slots=True)
class Cleared:
    """Removal of all held blocks."""


CacheEvent = Stored | Removed | Cleared


class _Run:
    """An event that still grows: neighbours of one kind become one event."""

    __slots__ = ("hashes", "parent", "stored")

    def __init__(self, stored: bool, parent: BlockHash | None, first: BlockHash) -> None:
        self.stored = stored
        self.parent = parent
        self.hashes = [first]

    def event(self) -> CacheEvent:
        hashes = tuple(self.hashes)
        return Stored(self.parent, hashes) if self.stored else Removed(hashes)


class EventLog:
    """Events in order, until ``take`` returns them, and the digest, O(1) for each block."""

    def __init__(self) -> None:
        self._runs: list[_Run | Cleared] = []
        self._xor = 0
        self._sum = 0

    @property
    def digest(self) -> Digest:
        return Digest(self._xor, self._sum)

    def stored(self, parent: BlockHash | None, block_hash: BlockHash) -> None:
        self._count(block_hash, 1)
        last = self._runs[-1] if self._runs else None
        if isinstance(last, _Run) and last.stored and last.hashes[-1] == parent:
            last.hashes.append(block_hash)
        else:
            self._runs.append(_Run(True, parent, block_hash))

    def removed(self, block_hash: BlockHash) -> None:
        self._count(block_hash, -1)
        last = self._runs[-1] if self._runs else None
        if isinstance(last, _Run) and not last.stored:
            last.hashes.append(block_hash)
        else:
            self._runs.append(_Run(False, None, block_hash))

    def cleared(self) -> None:
        self._xor = self._sum = 0
        self._runs.append(Cleared())

    def take(self) -> list[CacheEvent]:
        runs, self._runs = self._runs, []
        return [run.event() if isinstance(run, _Run) else run for run in runs]

    def _count(self, block_hash: BlockHash, sign: int) -> None:
        key = low64(block_hash)
        self._xor ^= key
        self._sum = (self._sum + sign * key) % WORD
