"""Requests that wait until a first replica starts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class WaitingRoom:
    """Counter of waiting requests.

    It calls ``on_wanted(True)`` for the first one and ``on_wanted(False)`` after the last one.
    """

    def __init__(self, on_wanted: Callable[[bool], None]) -> None:
        self._on_wanted = on_wanted
        self.count = 0

    @contextmanager
    def seat(self) -> Iterator[None]:
        self.count += 1
        if self.count == 1:
            self._on_wanted(True)
        try:
            yield
        finally:
            self.count -= 1
            if not self.count:
                self._on_wanted(False)
