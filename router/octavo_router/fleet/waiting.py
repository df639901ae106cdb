"""Requests that wait until a first replica comes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class WaitingRoom:
    """Says ``on_wanted(True)`` when the first request sits down, ``on_wanted(False)`` when the last one has left."""

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
