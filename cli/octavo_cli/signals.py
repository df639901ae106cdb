"""SIGINT, SIGTERM and SIGHUP as requests to stop."""

import os
import select
import signal
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal that ends any wait at once."""


class Signals:
    """Counter of signals.

    While ``raising``, each signal raises ``Stopped`` in the main thread. Otherwise each signal except the first does.
    """

    def __init__(self) -> None:
        self.raising = True
        self.count = 0
        # Not an Event: a handler would wait forever if the interrupted thread holds the Event's lock.
        self._read, self._write = os.pipe()

    def catch(self) -> None:
        for number in _NUMBERS:
            signal.signal(number, self._caught)

    def ignore(self) -> None:
        for number in _NUMBERS:
            signal.signal(number, signal.SIG_IGN)

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds`` and return True if a signal has come."""
        readable, _, _ = select.select([self._read], [], [], seconds)
        return bool(readable)

    def pause(self, seconds: float) -> None:
        """Wait, and raise ``Stopped`` at a signal.

        A signal's own ``Stopped`` is lost if the signal comes while Ray runs a callback of its own.
        """
        if self.wait(seconds):
            raise Stopped

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count == 1:
            os.write(self._write, b"!")
        if self.raising or self.count > 1:
            raise Stopped
