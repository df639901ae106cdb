"""What a mode decided, before it is put into words: the common shape of managed and external."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo_operator.decide.standing import Serving
from octavo_operator.model.actions import Action, Event
from octavo_operator.model.conditions import Verdict

DEPLOY_RETRY_S = 300.0


@dataclass(frozen=True, slots=True)
class Front:
    """The Ray cluster that answers requests, as status names it; empty where there is none."""

    name: str = ""
    address: str = ""
    spec_hash: str = ""
    image: str = ""
    ray_version: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``wanted`` is what the current generation's cluster runs, ``serving`` what answers now; most often the same."""

    ray: Verdict
    wanted: Serving
    serving: Serving
    front: Front = Front()
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    pending_hash: str = ""
    draining: Mapping[str, float] = field(default_factory=dict)
    corrections: tuple[float, ...] = ()
    fight: bool = False
    retried: bool = False
    """A failed deployment is tried again."""
    stopped: bool = False
    """Suspended, and nothing is left."""

    @property
    def switched(self) -> bool:
        """What answers is of the current generation's cluster."""
        return self.wanted is self.serving
