"""Which sequence has which row of the model runner."""

from collections.abc import Iterable


class Rows:
    """Rows ``0 .. count - 1``. A row that was left may be taken again at once: plans leave before they join."""

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
        """Gives a row back; the next plan tells the runner, if it ever heard that somebody was there."""
        self._free.append(row)
        if joined:
            self._leaves.append(row)

    def leave_again(self, rows: Iterable[int]) -> None:
        """Repeats what a plan that failed may not have carried out."""
        self._leaves.extend(self.free.intersection(rows).difference(self._leaves))

    def take_leaves(self) -> tuple[int, ...]:
        leaves, self._leaves = tuple(self._leaves), []
        return leaves
