"""One Ray: its dashboard, and Serve with the applications that run on it."""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from octavo_testing.operator.sweep.apiserver import clone
from octavo_testing.operator.sweep.clock import Timeline
from octavo_testing.operator.sweep.jobs import Jobs

BAD_MODEL = "hf://nobody/broken"
"""Replicas with this model never start."""
_ATTEMPTS = 3


class ServeError(Exception):
    """Serve's answer instead; ``code`` is HTTP's, 0 where there was no answer."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Place(Protocol):
    """Where a replica runs: a pod, or any node of an external Ray."""

    def alive(self) -> bool: ...

    def release(self) -> None: ...


class Anywhere:
    """Node of an external Ray, with room for everything."""

    def alive(self) -> bool:
        return True

    def release(self) -> None:
        return


@dataclass(eq=False)
class Replica:
    name: str
    version: str
    state: str = "STARTING"
    place: Place | None = None
    due: float | None = None
    """When it is running, has failed, or has stopped."""


@dataclass(eq=False)
class Deployment:
    name: str
    options: Mapping[str, Any]
    version: str
    target: int
    replicas: list[Replica] = field(default_factory=list)
    updating: bool = True
    rolling: bool = False
    """It replaces replicas of another version."""
    failures: int = 0

    @property
    def running(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.state == "RUNNING"]

    @property
    def failed(self) -> bool:
        return self.failures >= _ATTEMPTS

    def settled(self) -> bool:
        current = [replica for replica in self.running if replica.version == self.version]
        return len(self.replicas) == self.target == len(current)


@dataclass(eq=False)
class Application:
    name: str
    config: Mapping[str, Any]
    built_at: float
    deployments: dict[str, Deployment] = field(default_factory=dict)
    deleting: bool = False
    stale: bool = True
    """The configuration is not yet that of the deployments."""
    reconfigured: int = 0
    replaced: dict[str, int] = field(default_factory=dict)
    """By deployment: replicas stopped because of another version."""

    @property
    def broken(self) -> bool:
        return BAD_MODEL in json.dumps(self.config.get("args", {}))


class Ray:
    """``place`` finds a node for a replica of a deployment; None where there is none yet."""

    def __init__(
        self,
        timeline: Timeline,
        rng: random.Random,
        address: str,
        place: Callable[[Application, Deployment], Place | None],
        token: str | None = None,
    ) -> None:
        self.timeline, self.address, self.token = timeline, address, token
        self.answers = True
        self.started = False
        """Serve starts with the first PUT."""
        self.proxy_location = ""
        self.dead = False
        self.load = 0
        """Engine replicas that the requests of now would need, of each application that scales by load."""
        self.applications: dict[str, Application] = {}
        self.served: dict[str, float] = {}
        """By configuration: when an application last ran all of it."""
        self.on_change: list[Callable[[], None]] = []
        self.drain_s = 3.0
        self.jobs = Jobs(timeline, rng)
        self._rng, self._place = rng, place
        self._names = 0
        self._due: float | None = None

    # The REST API

    def get(self) -> dict[str, Any]:
        self._answering()
        applications = {name: _public(found, self.timeline.now) for name, found in self.applications.items()}
        self._note_served()
        details: dict[str, Any] = {"controller_info": {}, "proxies": {}, "applications": applications}
        details["target_capacity"] = None
        if self.started:
            details["controller_info"] = {"node_id": "n", "actor_id": "a"}
            details["proxy_location"] = self.proxy_location
            details["http_options"] = {"host": "0.0.0.0", "port": 8000}
            if self.proxy_location != "Disabled":
                details["proxies"] = {"node": {"status": "HEALTHY", "node_ip": "10.0.0.1"}}
        return clone(details)

    def put(self, body: Mapping[str, Any]) -> None:
        """Applications that the body leaves out are deleted."""
        self._answering()
        wanted = {application["name"]: application for application in body["applications"]}
        prefixes = [application.get("route_prefix", "/") for application in body["applications"]]
        if len(wanted) != len(body["applications"]) or len(set(prefixes)) != len(prefixes):
            raise ServeError(400, "names and route prefixes must be unique")
        if not self.started:
            self.started, self.proxy_location = True, body.get("proxy_location") or "EveryNode"
        for name, application in self.applications.items():
            application.deleting = application.deleting or name not in wanted
        for name, config in wanted.items():
            self._deploy(name, clone(config))
        self.advance()

    def _answering(self) -> None:
        if self.dead or not self.answers:
            raise ServeError(0 if self.dead else 503, "no answer")

    def _deploy(self, name: str, config: Mapping[str, Any]) -> None:
        now = self.timeline.now
        application = self.applications.get(name)
        if application is None:
            self.applications[name] = Application(name, config, built_at=now + self._rng.uniform(0.5, 2))
            return
        revived, application.deleting = application.deleting, False
        if application.config == config and not revived:
            return  # not even what has failed is tried again
        before, application.config, application.stale = application.config, config, True
        if _code(before) != _code(config):
            application.built_at = now + self._rng.uniform(0.5, 2)

    def _retarget(self, application: Application) -> None:
        application.stale = False
        for options in application.config["deployments"]:
            version = _code(application.config) + json.dumps(options.get("ray_actor_options"), sort_keys=True)
            deployment = application.deployments.get(options["name"])
            if deployment is None:
                target = self._target(options)
                application.deployments[options["name"]] = Deployment(options["name"], options, version, target)
                continue
            same = deployment.version == version and _versioned(deployment.options) == _versioned(options)
            if not (same and deployment.rolling) and (deployment.options != options or deployment.version != version):
                deployment.failures = 0  # a failed roll is not begun again by other counts
            deployment.rolling = deployment.rolling if same else bool(deployment.replicas)
            if deployment.version == version and deployment.options.get("user_config") != options.get("user_config"):
                application.reconfigured += 1
            deployment.updating = deployment.updating or deployment.options != options
            deployment.options, deployment.version = options, version
            deployment.target = self._target(options)

    def _target(self, options: Mapping[str, Any]) -> int:
        scaling = options.get("autoscaling_config")
        if scaling is None:
            return int(options.get("num_replicas", 1))
        fixed = scaling["min_replicas"] == scaling["max_replicas"] or scaling.get("target_ongoing_requests", 0) > 1000
        return int(
            scaling["min_replicas"] if fixed else min(max(self.load, scaling["min_replicas"]), scaling["max_replicas"])
        )

    # Life and death

    def set_load(self, load: int) -> None:
        self.load = load
        self.timeline.after(5, self.advance)

    def lose_everything(self) -> None:
        """The head is gone, and with it what only it knew."""
        for application in self.applications.values():
            for deployment in application.deployments.values():
                for replica in deployment.replicas:
                    self._release(replica)
        self.applications.clear()
        self.jobs.lose_everything()
        self.started = False
        self._changed()

    def advance(self) -> None:
        """Moves everything on to now, and asks to be called again when something is due."""
        now = self.timeline.now
        if self.dead:
            return
        changed = False
        for application in list(self.applications.values()):
            if application.deleting:
                changed |= self._tear_down(application, now)
                continue
            if application.built_at > now:
                continue
            if application.stale:
                self._retarget(application)
                changed = True
            for deployment in application.deployments.values():
                changed |= self._run(application, deployment, now)
        self._wake(now)
        if changed:
            self._changed()

    def _tear_down(self, application: Application, now: float) -> bool:
        changed = False
        for deployment in application.deployments.values():
            for replica in list(deployment.replicas):
                if replica.state != "STOPPING":
                    self._stop(replica, now)
                    changed = True
            changed |= self._reap(application, deployment, now)
        if not any(deployment.replicas for deployment in application.deployments.values()):
            del self.applications[application.name]
            changed = True
        return changed

    def _run(self, application: Application, deployment: Deployment, now: float) -> bool:
        changed = self._reap(application, deployment, now)
        deployment.target = self._target(deployment.options)
        if deployment.failed:
            return changed
        staying = [replica for replica in deployment.replicas if replica.state != "STOPPING"]
        current = [replica for replica in staying if replica.version == deployment.version]
        old = [replica for replica in staying if replica.version != deployment.version]
        surge = -(-deployment.target * int(deployment.options.get("max_surge_percent", 0)) // 100)
        ready = [replica for replica in current if replica.state == "RUNNING"]
        # An old one goes for each new one that runs; without surge one goes first, so that a new one has room.
        spare = len(ready) + len(old) - deployment.target + (0 if surge or not deployment.target else 1)
        starting = len(current) - len(ready)
        for replica in old[: max(spare - (0 if surge else starting), 0)]:
            application.replaced[deployment.name] = application.replaced.get(deployment.name, 0) + 1
            self._stop(replica, now)
            old.remove(replica)
            changed = True
        for replica in sorted(current, key=lambda one: one.state == "RUNNING")[
            : max(len(current) - deployment.target, 0)
        ]:
            self._stop(replica, now)
            changed = True
        room = deployment.target + surge - len(old) - len(current)
        for _ in range(min(deployment.target - len(current), room)):
            self._names += 1
            deployment.replicas.append(
                Replica(f"{application.name}#{deployment.name}#{self._names}", deployment.version)
            )
            changed = True
        for replica in deployment.replicas:
            if replica.state == "STARTING" and replica.due is None:
                replica.place = self._place(application, deployment)
                if replica.place is not None:
                    replica.due = now + self._rng.uniform(1, 20)
        if deployment.updating and deployment.settled():
            deployment.updating = deployment.rolling = False
            changed = True
        return changed

    def _reap(self, application: Application, deployment: Deployment, now: float) -> bool:
        changed = False
        for replica in list(deployment.replicas):
            lost = replica.place is not None and not replica.place.alive()
            due = replica.due is not None and replica.due <= now
            if replica.state == "STARTING" and due and not lost:
                replica.due, changed = None, True
                if not (application.broken and replica.version == deployment.version):
                    replica.state = "RUNNING"
                    continue
                deployment.failures += 1
            elif not lost and not (replica.state == "STOPPING" and due):
                continue
            self._release(replica)
            deployment.replicas.remove(replica)
            changed = True
        return changed

    def _stop(self, replica: Replica, now: float) -> None:
        drains = replica.state == "RUNNING"
        replica.state, replica.due = "STOPPING", now + (self._rng.uniform(0.3, self.drain_s) if drains else 0.1)

    def _release(self, replica: Replica) -> None:
        if replica.place is not None:
            replica.place.release()

    def _wake(self, now: float) -> None:
        dues = [application.built_at for application in self.applications.values() if application.built_at > now]
        for application in self.applications.values():
            if application.built_at > now and not application.deleting:
                continue  # nothing of it moves on before
            for deployment in application.deployments.values():
                dues += [replica.due for replica in deployment.replicas if replica.due is not None]
        if dues and (self._due is None or min(dues) < self._due):
            self._due = min(dues)
            self.timeline.after(self._due - now + 0.001, self._tick, self._due)

    def _tick(self, due: float) -> None:
        if self._due == due:
            self._due = None
        self.advance()

    def _note_served(self) -> None:
        for application in self.applications.values():
            if status_of(application, self.timeline.now) == "RUNNING":
                self.served[canonical(application.config)] = self.timeline.now

    def _changed(self) -> None:
        for listener in self.on_change:
            listener()


def canonical(config: Mapping[str, Any]) -> str:
    """The same for what is the same but for the number of replicas that it once started with, and for how often what
    Serve had given up was begun again."""
    found = clone(config)
    for options in found["deployments"]:
        options.pop("health_check_timeout_s", None)
        options.get("autoscaling_config", {}).pop("initial_replicas", None)
    return json.dumps(found, sort_keys=True)


def _code(config: Mapping[str, Any]) -> str:
    """A change of it replaces all replicas of all deployments."""
    return json.dumps([config.get(name) for name in ("import_path", "args", "runtime_env")], sort_keys=True)


def _versioned(options: Mapping[str, Any]) -> dict[str, Any]:
    """What of a deployment's options is part of its version."""
    counts = ("autoscaling_config", "num_replicas", "max_surge_percent")
    return {name: value for name, value in options.items() if name not in counts}


def status_of(application: Application, now: float) -> str:
    if application.deleting:
        return "DELETING"
    if application.built_at > now or not application.deployments:
        return "DEPLOYING"
    if any(deployment.failed for deployment in application.deployments.values()):
        return "DEPLOY_FAILED"
    return "DEPLOYING" if any(found.updating for found in application.deployments.values()) else "RUNNING"


def _public(application: Application, now: float) -> dict[str, Any]:
    building = application.built_at > now
    failed = any(deployment.failed for deployment in application.deployments.values())
    return {
        "name": application.name,
        "status": status_of(application, now),
        "message": "Deploying app failed: replicas do not start" if failed else "",
        "route_prefix": application.config.get("route_prefix", "/"),
        "last_deployed_time_s": now,
        "deployed_app_config": application.config,
        "source": "declarative",
        "deployments": {} if building else {name: _shown(one) for name, one in application.deployments.items()},
    }


def _shown(deployment: Deployment) -> dict[str, Any]:
    if deployment.failed:
        status = "DEPLOY_FAILED"
    elif deployment.updating:
        status = "UPDATING"
    elif len(deployment.running) != deployment.target:
        status = "UPSCALING" if len(deployment.running) < deployment.target else "DOWNSCALING"
    else:
        status = "HEALTHY"
    return {
        "name": deployment.name,
        "status": status,
        "status_trigger": "CONFIG_UPDATE_STARTED" if deployment.updating else "AUTOSCALING",
        "message": "The deployment failed to start 3 times in a row" if deployment.failed else "",
        "target_num_replicas": deployment.target,
        "replicas": [
            {"replica_id": one.name, "state": one.state, "actor_id": one.name, "node_ip": "10.0.0.1", "pid": 1}
            for one in deployment.replicas
        ],
    }
