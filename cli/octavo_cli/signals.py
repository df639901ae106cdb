"""SIGINT, SIGTERM and SIGHUP as the wish to stop."""

import os
import select
import signal
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal is to end at once whatever is waited for."""


class Signals:
    """Counts signals. While ``raising`` each, and else each but the first, raises ``Stopped`` in the main thread."""

    def __init__(self) -> None:
        self.raising = True
        self.count = 0
        # Not an Event: a handler that comes while the thread below it holds the Event's lock waits for it for ever.
        self._read, self._write = os.pipe()

    def catch(self) -> None:
        for number in _NUMBERS:
            signal.signal(number, self._caught)

    def ignore(self) -> None:
        for number in _NUMBERS:
            signal.signal(number, signal.SIG_IGN)

    def wait(self, seconds: float) -> bool:
        """Returns whether a signal has come."""
        readable, _, _ = select.select([self._read], [], [], seconds)
        return bool(readable)

    def pause(self, seconds: float) -> None:
        """Raises ``Stopped``, which is lost where a signal comes while Ray runs a callback of its own."""
        if self.wait(seconds):
            raise Stopped

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count == 1:
            os.write(self._write, b"!")
        if self.raising or self.count > 1:
            raise Stopped
