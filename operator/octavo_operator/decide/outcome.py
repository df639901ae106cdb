"""Outcome of a mode's decisions, before it becomes conditions and texts. Managed and external mode share it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo_operator.decide.application import Serving
from octavo_operator.model.actions import Action, Event
from octavo_operator.model.conditions import Verdict

DEPLOY_RETRY_S = 300.0


@dataclass(frozen=True, slots=True)
class Front:
    """The Ray cluster that answers requests, as the status names it; empty if there is none."""

    name: str = ""
    address: str = ""
    spec_hash: str = ""
    image: str = ""
    ray_version: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Decisions of one round.

    ``wanted`` is our application in the current generation's cluster. ``serving`` is our application in the cluster
    that answers now. They are most often the same.
    """

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
    """True if a failed deployment is retried."""
    stopped: bool = False
    """True if the deployment is suspended and nothing of it is left."""

    @property
    def switched(self) -> bool:
        """Return True if the cluster that answers is the current generation's."""
        return self.wanted is self.serving
