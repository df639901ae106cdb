"""When and how calls of the operator fail."""

import random
from dataclasses import dataclass, field
from enum import StrEnum

from octavo_testing.operator.sweep.clock import VirtualLoop


class Fault(StrEnum):
    CONFLICT = "409"
    TOO_MANY = "429"
    SERVER = "500"
    RESET = "reset before it was done"
    LOST = "done, and the answer lost"
    SLOW = "slow"


@dataclass
class Faults:
    """Each call of a client fails with ``rate`` until ``until``."""

    loop: VirtualLoop
    rng: random.Random
    rate: float = 0.0
    until: float = 0.0
    kinds: list[Fault] = field(default_factory=list)
    drop_watches: float = 0.0
    """Share of watch events that never arrive."""

    def strike(self, rate: float, seconds: float, kinds: list[Fault]) -> None:
        self.rate, self.until, self.kinds = rate, self.loop.now + seconds, kinds

    def draw(self) -> Fault | None:
        if self.loop.now >= self.until or self.rng.random() >= self.rate:
            return None
        return self.rng.choice(self.kinds)
