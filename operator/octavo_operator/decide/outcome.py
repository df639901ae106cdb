"""Outcome of a mode's decisions, before it becomes conditions and texts. Managed and external mode share it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo_operator.decide.application import ApplicationView
from octavo_operator.model.actions import Action, Event
from octavo_operator.model.conditions import Verdict


@dataclass(frozen=True, slots=True)
class ActiveCluster:
    """The Ray cluster that receives the requests, as the status names it. All fields are empty if there is none."""

    name: str = ""
    """Name of the RayCluster, empty in external mode."""
    address: str = ""
    """Address of the dashboard."""
    spec_hash: str = ""
    image: str = ""
    ray_version: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Decisions of one round.

    ``target`` and ``active`` are the same object, except while a new cluster starts beside the old one.
    """

    ray: Verdict
    """Verdict of the condition ``RayClusterReady``."""
    target: ApplicationView
    """Our application in the cluster of the current generation."""
    active: ApplicationView
    """Our application in the cluster that receives requests after this round."""
    cluster: ActiveCluster = ActiveCluster()
    """The cluster of ``active``."""
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    pending_hash: str = ""
    """Spec hash of the cluster that is to replace the active one, empty if none is."""
    draining: Mapping[str, float] = field(default_factory=dict)
    """Clusters that end their streams before deletion, with the Unix time at which their stop began."""
    corrections: tuple[float, ...] = ()
    """Unix times of recent corrections of another client's configuration."""
    drift_fight: bool = False
    """True if another client changes the application as often as the operator reverts it."""
    retried: bool = False
    """True if a failed deployment is retried."""
    stopped: bool = False
    """True if the deployment is suspended and nothing of it is left."""

    @property
    def switched(self) -> bool:
        """Return True if the active cluster is the current generation's."""
        return self.target is self.active
