"""Managed mode: a Ray cluster of the deployment's own, through KubeRay."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo_api.deployment import ServingDeployment
from octavo_api.serve_config import ENGINE, GATEWAY
from octavo_operator.decide import application, event_texts
from octavo_operator.decide.application import Put, Serving, Standing
from octavo_operator.decide.clusters import Arrangement, arrange
from octavo_operator.decide.groups import bound
from octavo_operator.decide.outcome import Front, Outcome
from octavo_operator.decide.stopping import stop
from octavo_operator.model import conditions, names
from octavo_operator.model.actions import Action, Apply, CreateSecret, Delete, Event, PatchCluster, PatchService
from octavo_operator.model.conditions import Reason, Verdict
from octavo_operator.model.defaults import Defaults
from octavo_operator.model.desired import Place, counts, starting_with
from octavo_operator.model.memory import Memory, time_of
from octavo_operator.model.observed import Cluster, Key, Observed, Reach, Resource
from octavo_operator.model.spec_hash import spec_hash
from octavo_operator.objects import children, raycluster

KUBERAY_COMMAND = (
    "helm install kuberay-operator kuberay-operator --repo https://ray-project.github.io/kuberay-helm --version 1.5.0 "
    "--namespace kuberay-system --create-namespace"
)
_NOTHING = Serving(Standing.UNREACHED)


@dataclass(frozen=True, slots=True)
class Managed:
    """One plan's view of the deployment's clusters."""

    resource: Resource
    deployment: ServingDeployment
    place: Place
    observed: Observed
    now: float
    defaults: Defaults
    memory: Memory

    @property
    def key(self) -> Key:
        return self.resource.key

    @property
    def hash(self) -> str:
        return spec_hash(self.deployment)

    @property
    def wanted_name(self) -> str:
        return names.cluster(self.key, self.hash)

    def decide(self, *, blocked: bool) -> Outcome:
        """Decide one round. If ``blocked``, touch nothing: objects that the spec needs are missing or foreign."""
        suspend = self.deployment.spec.suspend
        service = self.observed.children.get(("Service", names.service(self.key)))
        lost = {cluster.name for cluster in self.observed.clusters if self._locked_out(cluster)}
        arrangement = arrange(
            self.observed.clusters,
            wanted_hash=self.hash,
            wanted_name=self.wanted_name,
            selected=children.selected_cluster(service) or self.memory.cluster,
            strategy=self.deployment.spec.rollout.strategy,
            suspend=suspend,
            announced=self.memory.pending_hash == self.hash,
            lost=lost,
        )
        target, active = arrangement.target, arrangement.active
        wanted = self._view(target)
        switch = target is not None and active is not None and target is not active and self._is_up(target, wanted)
        front = target if switch else active
        put = application.decide(
            wanted,
            self.memory,
            self.resource.generation,
            self.now,
            same_cluster=target is not None and target is active and target.name == self.memory.cluster,
        )
        retried = target is not None and event_texts.retry_due(wanted, self.memory, self.now)
        actions: list[Action] = []
        events: list[Event] = []
        draining: dict[str, float] = {}
        if not blocked:
            if not suspend:
                steps = self._serve(arrangement, wanted, put, retried=retried, front=front)
                actions += steps[0]
                events += steps[1]
            actions += self._unwanted(self._view(front))
            if arrangement.announce and active is not None:
                again = event_texts.recreated(active.name, names.token_secret(self.key))
                events.append(again if active.name in lost else event_texts.interrupts(active.name, self.wanted_name))
            if switch and active is not None and target is not None:
                events.append(event_texts.switched(active.name, target.name))
            draining = self._stop(arrangement, actions)
        return Outcome(
            ray=self._ray(arrangement, wanted),
            wanted=wanted,
            serving=wanted if front is target else self._view(front),
            front=self._front(front),
            actions=tuple(actions),
            events=tuple(events),
            pending_hash="" if suspend or blocked or (target is not None and front is target) else self.hash,
            draining=draining,
            corrections=put.corrections,
            fight=put.fight,
            retried=retried and not blocked,
            stopped=suspend and not self.observed.clusters,
        )

    def _serve(
        self, arrangement: Arrangement, wanted: Serving, put: Put, *, retried: bool, front: Cluster | None
    ) -> tuple[list[Action], list[Event]]:
        """Return the actions and events that create or correct the wanted cluster and put the application there."""
        actions: list[Action] = []
        events: list[Event] = []
        target, place = arrangement.target, self.place
        if ("Secret", names.token_secret(self.key)) not in self.observed.children:
            actions.append(CreateSecret(children.token_secret(self.resource), (names.AUTH_TOKEN_KEY,)))
        intended = raycluster.build(self.resource, self.deployment, place.application, self.hash, self.defaults, target)
        if arrangement.create and self.observed.kuberay_installed:
            actions.append(Apply(intended))
            events.append(event_texts.cluster_created(self.wanted_name))
        if target is not None:
            if operations := raycluster.corrections(intended, target):
                actions.append(PatchCluster(target.name, operations))
                events.append(event_texts.child_corrected("RayCluster", target.name))
            present = self._present(wanted)
            groups = {
                names.GATEWAY_GROUP: counts(place.application, GATEWAY),
                names.ENGINE_GROUP: counts(place.application, ENGINE),
            }
            if operations := bound(target, groups, present, self._stopping(wanted)):
                actions.append(PatchCluster(target.name, operations))
        selects = front.name if front is not None else self.wanted_name
        for intent in (
            children.service(self.resource, self.deployment, selects),
            self._budget(self._view(front)),
            children.network_policy(self.resource, self.deployment, self.defaults),
        ):
            if intent is not None:
                self._apply(intent, actions, events)
        if target is not None:
            if target is not arrangement.active and wanted.standing is Standing.MISSING:
                place = self._beside(self._view(arrangement.active))
            put_actions, put_events = event_texts.put(self._address(target), place, wanted, put, retried=retried)
            actions += put_actions
            events += put_events
        return actions, events

    def _beside(self, serving_now: Serving) -> Place:
        """Return the place for a new cluster. It takes over the old one's load, so it starts with as many engines."""
        if self.deployment.spec.autoscaling is None or serving_now.engines is None:
            return self.place
        return starting_with(self.place, serving_now.engines.target)

    def _apply(self, intent: Mapping[str, Any], actions: list[Action], events: list[Event]) -> None:
        kind, name = str(intent["kind"]), str(intent["metadata"]["name"])
        live = self.observed.children.get((kind, name))
        if children.is_right(intent, live):
            return
        if kind == "Service" and (operations := children.port_corrections(intent, live)):
            actions.append(PatchService(name, operations))
        actions.append(Apply(intent, "" if live is None else str(live["metadata"]["uid"])))
        if live is not None and children.was_applied(intent, live):
            events.append(event_texts.child_corrected(kind, name))

    def _budget(self, serving_now: Serving) -> dict[str, Any] | None:
        """Return the budget for the present number of engines, which under autoscaling only Serve knows."""
        if self.deployment.spec.suspend:
            return None
        engines = counts(self.place.application, ENGINE)
        live = self.observed.children.get(("PodDisruptionBudget", names.disruption_budget(self.key)))
        if self.deployment.spec.autoscaling is None:
            replicas = engines.least
        elif serving_now.engines is not None:
            replicas = max(engines.least, min(serving_now.engines.target, engines.most))
        else:
            replicas = max(engines.least, 0 if live is None else int(live["spec"].get("minAvailable", 0)) + 1)
        return children.disruption_budget(self.resource, replicas)

    def _unwanted(self, serving_now: Serving) -> list[Delete]:
        """Return deletions of the objects that the spec no longer needs."""
        unwanted = []
        if self._budget(serving_now) is None:
            unwanted.append(("policy/v1", "PodDisruptionBudget", names.disruption_budget(self.key)))
        if not self.deployment.managed.network_policy:
            unwanted.append(("networking.k8s.io/v1", "NetworkPolicy", names.network_policy(self.key)))
        return [
            Delete(version, kind, name, str(live["metadata"].get("uid", "")))
            for version, kind, name in unwanted
            if (live := self.observed.children.get((kind, name))) is not None
        ]

    def _stop(self, arrangement: Arrangement, actions: list[Action]) -> dict[str, float]:
        """Add the actions that stop unwanted clusters; return which clusters drain, with the time of the start."""
        draining: dict[str, float] = {}
        for cluster in arrangement.stop:
            since = self.memory.draining.get(cluster.name, self.now)
            step = stop(
                cluster,
                self._view(cluster),
                self.place,
                self._address(cluster),
                waited=self.now - since,
                drain_seconds=self.deployment.spec.rollout.drain_seconds,
                settle=cluster is not arrangement.active,
                # A cluster that refuses the operator's token cannot be drained, however long the operator waits.
                served=not self._locked_out(cluster)
                and (
                    cluster.name in self.memory.draining
                    or (cluster.name == self.memory.cluster and bool(self.memory.config_hash))
                ),
            )
            actions += step.actions
            if step.draining:
                draining[cluster.name] = since
        return draining

    def _is_up(self, target: Cluster, view: Serving) -> bool:
        """Return True if the new cluster can take all traffic at once: all replicas run, and its pods are ready."""
        engines, gateways = view.engines, view.gateways
        if not view.settled or engines is None or gateways is None:
            return False
        application = self.place.application
        least = max(counts(application, ENGINE).least, engines.target)
        many = counts(application, GATEWAY).least
        ready = int((target.document.get("status") or {}).get("readyWorkerReplicas") or 0)
        return engines.running >= least and gateways.running >= many and ready >= least + many

    def _present(self, view: Serving) -> Mapping[str, int] | None:
        if not view.settled or view.engines is None or view.gateways is None:
            return None
        return {
            names.ENGINE_GROUP: len(view.engines.replicas),
            names.GATEWAY_GROUP: len(view.gateways.replicas),
        }

    def _stopping(self, view: Serving) -> Mapping[str, int]:
        groups = ((names.ENGINE_GROUP, view.engines), (names.GATEWAY_GROUP, view.gateways))
        return {
            name: sum(replica.state == "STOPPING" for replica in deployment.replicas)
            for name, deployment in groups
            if deployment is not None
        }

    def _ray(self, arrangement: Arrangement, wanted: Serving) -> Verdict:
        if self.deployment.spec.suspend:
            gone = not self.observed.clusters
            return conditions.no(Reason.SUSPENDED if gone else Reason.SUSPENDING)
        if not self.observed.kuberay_installed:
            return conditions.no(
                Reason.KUBERAY_NOT_INSTALLED, f"Kubernetes knows no RayCluster; install KubeRay: {KUBERAY_COMMAND}"
            )
        target = arrangement.target
        if target is None:
            going = [cluster.name for cluster in self.observed.clusters]
            waits = arrangement.stop or any(cluster.deleting for cluster in self.observed.clusters)
            said = f"waits until RayCluster {going[0]} is gone" if going and waits else "is being created"
            return conditions.no(Reason.RAY_CLUSTER_PENDING, f"RayCluster {self.wanted_name} {said}")
        reach = wanted.serve.reach if wanted.serve is not None else Reach.UNREACHABLE
        if target.head_ready and reach is Reach.AUTH_FAILED:
            secret = names.token_secret(self.key)
            return conditions.no(
                Reason.AUTH_FAILED,
                f"RayCluster {target.name} does not accept the token in Secret {secret}, which was changed: restore "
                f"the old token, or delete Secret {secret}, and the operator creates a new cluster with a new token",
            )
        if target.head_ready and reach is not Reach.UNREACHABLE:
            return event_texts.reached(reach, wanted)
        said = target.message or (wanted.serve.message if wanted.serve is not None else "")
        if target.name == self.memory.cluster and self.memory.config_hash:
            answers = f"the head of RayCluster {target.name} does not answer; {said}".rstrip("; ")
            return event_texts.unreached(self.memory, answers, self.now)
        return conditions.no(
            Reason.HEAD_NOT_READY, f"the head of RayCluster {target.name} is not ready; {said}".rstrip("; ")
        )

    def _locked_out(self, cluster: Cluster) -> bool:
        """Return True if the token is lost: the Secret of the cluster's pods was deleted, and this Secret is another
        one."""
        answer = self.observed.serve.get(self._address(cluster))
        secret = self.observed.children.get(("Secret", names.token_secret(self.key)))
        if secret is None or answer is None or answer.reach is not Reach.AUTH_FAILED:
            return False
        made = time_of(secret["metadata"].get("creationTimestamp"))
        return made is not None and made > cluster.created_at

    def _view(self, cluster: Cluster | None) -> Serving:
        if cluster is None:
            return _NOTHING
        answer = self.observed.serve.get(self._address(cluster))
        return application.look(answer, self.place, self.memory, self.resource.generation)

    def _address(self, cluster: Cluster) -> str:
        return self.defaults.dashboard_of(self.key, cluster.name)

    def _front(self, cluster: Cluster | None) -> Front:
        if cluster is None:
            return Front()
        version = str((cluster.document.get("spec") or {}).get("rayVersion") or "")
        return Front(cluster.name, self._address(cluster), cluster.spec_hash, cluster.image, version)
