"""Assignment of the model runner's rows to sequences."""

from collections.abc import Iterable


class RowAllocator:
    """Rows ``0 .. count - 1``. A sequence may take a freed row at once: plans leave before they join."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._leaves: list[int] = []

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.count - len(self._free)

    @property
    def free(self) -> frozenset[int]:
        return frozenset(self._free)

    def take(self) -> int:
        return self._free.pop()

    def leave(self, row: int, *, joined: bool) -> None:
        """Free a row. If the runner has seen a sequence in it (``joined``), the next plan has the leave."""
        self._free.append(row)
        if joined:
            self._leaves.append(row)

    def repeat_leaves(self, rows: Iterable[int]) -> None:
        """Repeat the leaves of a failed plan for rows that are still free.

        The runner may not have executed them.
        """
        self._leaves.extend(self.free.intersection(rows).difference(self._leaves))

    def take_leaves(self) -> tuple[int, ...]:
        leaves, self._leaves = tuple(self._leaves), []
        return leaves
