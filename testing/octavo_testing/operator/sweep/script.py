"""Random scripts: what users, other people and misfortune do, one step after the other."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class Verb(StrEnum):
    CREATE = "create"
    EDIT_LIVE = "edit a live field"
    EDIT_ROLLING = "edit a rolling field"
    EDIT_CLUSTER = "edit a field that needs a new cluster"
    EDIT_BACK = "edit back to the first spec"
    EDIT_BROKEN = "edit to a model that never starts"
    STRATEGY = "change rollout.strategy"
    SCALE = "scale"
    AUTOSCALING_ON = "turn autoscaling on"
    AUTOSCALING_OFF = "turn autoscaling off"
    LOAD = "change the load"
    SUSPEND = "suspend"
    RESUME = "resume"
    POLICY = "change deletionPolicy or networkPolicy"
    NEED_SECRET = "name a Secret"
    MAKE_SECRET = "make the Secret"
    DELETE = "delete"
    FORCE_DELETE = "ask for forced deletion"
    DELETE_NAMESPACE = "delete the namespace"
    FOREIGN_PUT = "somebody PUTs over our application"
    FOREIGN_REMOVE = "somebody removes our application"
    FOREIGN_SET = "a foreign application appears or changes"
    FOREIGN_GONE = "a foreign application goes"
    FOREIGN_SAME_NAME = "a foreign application takes our name"
    FOREIGN_OBJECT = "somebody makes an object of a name that we need"
    FOREIGN_OBJECT_GONE = "somebody deletes their object of that name"
    DELETE_CLUSTER = "RayCluster deleted by hand"
    DELETE_CHILD = "a child deleted by hand"
    EDIT_CHILD = "a child edited by hand"
    HEAD_RESTART = "the head restarts"
    SERVE_DOWN = "Serve answers 503 for a while"
    SERVE_LOST = "Serve loses its applications"
    SERVE_FAULTS = "Serve's answers get slow or lost for a while"
    API_FAULTS = "the API server fails for a while"
    DEAF = "watch events get lost for a while"
    NO_ROOM = "no node for another head"
    ROOM = "a node for another head"
    INSTALL_KUBERAY = "KubeRay is installed"
    RAY_DIES = "the external Ray dies for good"
    KILL = "the operator is killed"
    UPGRADE = "the operator is upgraded"


@dataclass(frozen=True)
class Step:
    """``delay`` seconds after the step before; ``choice`` decides the details."""

    delay: float
    verb: Verb
    target: int
    choice: int

    def __str__(self) -> str:
        return f"+{self.delay:.1f}s [{self.target}] {self.verb} ({self.choice})"


@dataclass(frozen=True)
class Script:
    """``external`` says for each deployment whether it is on the shared Ray."""

    seed: int
    external: tuple[bool, ...]
    kuberay: bool
    steps: tuple[Step, ...]

    def without(self, index: int) -> "Script":
        return replace(self, steps=self.steps[:index] + self.steps[index + 1 :])

    def __str__(self) -> str:
        modes = ", ".join("external" if external else "managed" for external in self.external)
        head = f"seed {self.seed}: {modes}{'' if self.kuberay else ', no KubeRay'}"
        return "\n".join([head, *(f"  {step}" for step in self.steps)])


# Nobody's Ray dies, and no namespace goes, in most scripts: not much happens after.
WEIGHTS = {
    Verb.CREATE: 6,
    Verb.EDIT_LIVE: 6,
    Verb.EDIT_ROLLING: 5,
    Verb.EDIT_CLUSTER: 6,
    Verb.EDIT_BACK: 4,
    Verb.STRATEGY: 4,
    Verb.SCALE: 6,
    Verb.KILL: 8,
    Verb.API_FAULTS: 5,
    Verb.SUSPEND: 3,
    Verb.RESUME: 4,
    Verb.DELETE: 4,
    Verb.DELETE_NAMESPACE: 1,
    Verb.RAY_DIES: 1,
}
_DELAYS = (0.0, 0.05, 0.5, 2.0, 8.0, 25.0, 60.0, 200.0)


def generate(seed: int, *, verbs: Sequence[Verb] | None = None, external: Sequence[bool] | None = None) -> Script:
    """``verbs`` limits what happens, ``external`` gives the deployments."""
    rng = random.Random(seed)
    modes = tuple(external) if external is not None else _modes(rng)
    pool = list(verbs or Verb)
    weights = [WEIGHTS.get(verb, 2) for verb in pool]
    steps = [Step(rng.uniform(0, 3), Verb.CREATE, target, rng.getrandbits(16)) for target in range(len(modes))]
    for _ in range(rng.randint(2, 14)):
        delay = rng.choice(_DELAYS) * rng.uniform(0.5, 1.5)
        verb = rng.choices(pool, weights)[0]
        steps.append(Step(round(delay, 2), verb, rng.randrange(len(modes)), rng.getrandbits(16)))
    return Script(seed, modes, kuberay=rng.random() > 0.15, steps=tuple(steps))


def _modes(rng: random.Random) -> tuple[bool, ...]:
    return tuple(rng.random() < 0.5 for _ in range(rng.choice((1, 1, 1, 2, 3))))
