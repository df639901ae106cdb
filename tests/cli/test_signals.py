import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from octavo_cli.signals import Signals, Stopped


@pytest.fixture
def signals() -> Iterator[Signals]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signals = Signals()
    signals.catch()
    yield signals
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_while_it_starts_a_signal_ends_whatever_is_waited_for(signals: Signals, number: int) -> None:
    with pytest.raises(Stopped):
        os.kill(os.getpid(), number)
    with pytest.raises(Stopped):
        signals.pause(60)


def test_later_the_first_one_is_a_wish_and_the_second_ends_at_once(signals: Signals) -> None:
    signals.raising = False
    assert not signals.wait(0)
    os.kill(os.getpid(), signal.SIGINT)
    assert signals.wait(60)
    with pytest.raises(Stopped):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signals.count == 2


def test_in_the_end_nothing_disturbs(signals: Signals) -> None:
    signals.ignore()
    os.kill(os.getpid(), signal.SIGTERM)
    assert signals.count == 0


_UNDER_SIGNALS = """
import os, signal, threading, time
from octavo_cli.signals import Signals, Stopped

signals = Signals()
signals.raising = False
signals.catch()
signals.count = -3000  # none of these is the second
over = threading.Event()

def send():
    for _ in range(2000):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.0002)
    over.set()

threading.Thread(target=send).start()
while not over.is_set():
    signals.wait(0.0001)
assert signals.count > -3000
signals.count = 0
assert not signals.wait(0.01)
os.kill(os.getpid(), signal.SIGTERM)
assert signals.wait(5)
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)
except Stopped:
    print("stopped")
"""


def test_a_signal_at_any_moment_of_a_wait_is_taken_and_stops_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _UNDER_SIGNALS], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == ("stopped\n", 0), done.stderr
