"""Preemption at a chosen moment, as the scheduler would do it at the start of its next plan."""

from octavo_engine.core.engine_core import EngineCore
from octavo_engine.core.state.sequence import Sequence


def running_sequences(core: EngineCore) -> list[Sequence]:
    """Return the sequences that have a row, in the order of the scheduler."""
    return [seq for seq in core._scheduler.running if seq.row is not None]


def preempt(core: EngineCore, victim: Sequence) -> None:
    """Preempt a running sequence. The scheduler itself never preempts the first one."""
    core._scheduler.running.remove(victim)
    core._scheduler._preempt(victim)
    core.check_integrity()
