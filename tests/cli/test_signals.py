import os
import signal
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
