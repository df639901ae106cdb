"""Managed mode: a Ray cluster of the deployment's own, through KubeRay.

The Service selects the *active* cluster. The *target* is the cluster of the current spec, which
``spec_hash`` identifies. ``clusters.assign_roles`` finds both. These are the cases of a round:

1. **No cluster exists.** Create the token Secret, the target and the Service.
2. **The target is active.** Revert external changes, move the bounds of the worker groups, deploy the application.
3. **Another cluster is active, strategy NewCluster.** Create the target beside it and deploy there, with as many
   engines as the active cluster has. Once the target can take over, the Service selects it, and the old one drains.
4. **Another cluster is active, strategy InPlace.** Announce the interruption in one round. Then drain and delete the
   active cluster, and create the target once the old one is gone.
5. **The edit was reverted.** The active cluster is the target again, and the other cluster drains.
6. **A cluster rejects the operator, because its token Secret was replaced.** Announce it, delete and create it again.
7. **suspend.** Drain and delete all clusters, and the PodDisruptionBudget.
8. **blocked**, since objects that the spec needs are missing or foreign. Change nothing, and report.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo_api.resource.deployment import ServingDeployment
from octavo_api.resource.serve_config import ENGINE, GATEWAY
from octavo_operator.decide import event_texts, ray_verdict
from octavo_operator.decide.application import (
    ApplicationView,
    DeployDecision,
    SyncState,
    decide_deploy,
    retry_due,
    view_application,
)
from octavo_operator.decide.clusters import ClusterRoles, assign_roles
from octavo_operator.decide.groups import bounds_patch
from octavo_operator.decide.outcome import ActiveCluster, Outcome
from octavo_operator.decide.stopping import stop_step
from octavo_operator.model import conditions, names
from octavo_operator.model.actions import Action, Apply, CreateSecret, Delete, Event, PatchCluster, PatchService
from octavo_operator.model.conditions import Reason, Verdict
from octavo_operator.model.defaults import Defaults
from octavo_operator.model.desired import DesiredApplication, counts, with_initial_engines
from octavo_operator.model.memory import Memory, time_of
from octavo_operator.model.observed import Cluster, Key, Observed, Reach, Resource
from octavo_operator.model.spec_hash import spec_hash
from octavo_operator.objects import children, raycluster

KUBERAY_COMMAND = (
    "helm install kuberay-operator kuberay-operator --repo https://ray-project.github.io/kuberay-helm --version 1.5.0 "
    "--namespace kuberay-system --create-namespace"
)


@dataclass(frozen=True, slots=True)
class _Steps:
    """Actions and events of a round, in order, while they are collected."""

    actions: list[Action] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Managed:
    """Inputs of one round in managed mode; ``decide`` returns its outcome."""

    resource: Resource
    deployment: ServingDeployment
    """Spec of ``resource``, parsed."""
    desired: DesiredApplication
    observed: Observed
    now: float
    """Unix time."""
    defaults: Defaults
    memory: Memory
    """Facts of the last status."""

    @property
    def key(self) -> Key:
        return self.resource.key

    @property
    def hash(self) -> str:
        return spec_hash(self.deployment)

    @property
    def target_name(self) -> str:
        return names.cluster(self.key, self.hash)

    @property
    def _suspend(self) -> bool:
        return self.deployment.spec.suspend

    def decide(self, *, blocked: bool) -> Outcome:
        """Decide one round. The cases are in the docstring of the module."""
        roles = self._roles()
        target, active = roles.target, roles.active
        target_view = self._view(target)
        switch = target is not None and target is not active and self._can_take_over(target, target_view)
        next_active = target if switch else active
        next_view = target_view if next_active is target else self._view(next_active)
        decision = decide_deploy(
            target_view,
            self.memory,
            self.resource.generation,
            self.now,
            same_cluster=target is not None and target is active and target.name == self.memory.cluster,
        )
        retried = target is not None and retry_due(target_view, self.memory, self.now)
        steps = _Steps()
        draining: dict[str, float] = {}
        if not blocked:
            if not self._suspend:
                self._create_and_correct(roles, target_view, next_active, steps)
                self._deploy(roles, target_view, decision, steps, retried=retried)
            steps.actions.extend(self._obsolete_children(next_view))
            steps.events.extend(self._announcements(roles, switch=switch))
            draining = self._stop_clusters(roles, steps)
        return Outcome(
            ray=self._ray(roles, target_view),
            target=target_view,
            active=next_view,
            cluster=self._active_cluster(next_active),
            actions=tuple(steps.actions),
            events=tuple(steps.events),
            pending_hash="" if self._suspend or blocked or (target and next_active is target) else self.hash,
            draining=draining,
            corrections=decision.corrections,
            drift_fight=decision.drift_fight,
            retried=retried and not blocked,
            stopped=self._suspend and not self.observed.clusters,
        )

    # Clusters

    def _roles(self) -> ClusterRoles:
        service = self.observed.children.get(("Service", names.service(self.key)))
        return assign_roles(
            self.observed.clusters,
            desired_hash=self.hash,
            desired_name=self.target_name,
            selected=children.selected_cluster(service) or self.memory.cluster,
            strategy=self.deployment.spec.rollout.strategy,
            suspend=self._suspend,
            announced=self.memory.pending_hash == self.hash,
            locked_out={cluster.name for cluster in self.observed.clusters if self._locked_out(cluster)},
        )

    def _locked_out(self, cluster: Cluster) -> bool:
        """Return True if the cluster's token is lost, because its Secret was deleted and replaced.

        The pods of the cluster have the value of the old Secret.
        """
        answer = self.observed.serve.get(self._address(cluster))
        secret = self.observed.children.get(("Secret", names.token_secret(self.key)))
        if secret is None or answer is None or answer.reach is not Reach.AUTH_FAILED:
            return False
        secret_created_at = time_of(secret["metadata"].get("creationTimestamp"))
        return secret_created_at is not None and secret_created_at > cluster.created_at

    def _can_take_over(self, target: Cluster, view: ApplicationView) -> bool:
        """Return True if the target can take all traffic at once: all replicas run, and its pods are ready."""
        engines, gateways = view.engines, view.gateways
        if not view.settled or engines is None or gateways is None:
            return False
        needed_engines = max(counts(self.desired.config, ENGINE).minimum, engines.target)
        needed_gateways = counts(self.desired.config, GATEWAY).minimum
        ready_pods = int((target.document.get("status") or {}).get("readyWorkerReplicas") or 0)
        return (
            engines.running >= needed_engines
            and gateways.running >= needed_gateways
            and ready_pods >= needed_engines + needed_gateways
        )

    def _announcements(self, roles: ClusterRoles, *, switch: bool) -> list[Event]:
        events: list[Event] = []
        active, target = roles.active, roles.target
        if roles.announce and active is not None:
            if self._locked_out(active):
                events.append(event_texts.recreation(active.name, names.token_secret(self.key)))
            else:
                events.append(event_texts.interruption(active.name, self.target_name))
        if switch and active is not None and target is not None:
            events.append(event_texts.traffic_switched(active.name, target.name))
        return events

    def _stop_clusters(self, roles: ClusterRoles, steps: _Steps) -> dict[str, float]:
        """Add the actions that stop clusters; return which clusters drain, with the Unix time of the start."""
        draining: dict[str, float] = {}
        for cluster in roles.stop:
            since = self.memory.draining.get(cluster.name, self.now)
            deployed_to = cluster.name == self.memory.cluster and bool(self.memory.config_hash)
            step = stop_step(
                cluster,
                self._view(cluster),
                self.desired,
                self._address(cluster),
                waited=self.now - since,
                drain_seconds=self.deployment.spec.rollout.drain_seconds,
                settle=cluster is not roles.active,
                # A cluster that rejects the operator's token cannot be drained, however long the operator waits.
                may_have_streams=not self._locked_out(cluster)
                and (cluster.name in self.memory.draining or deployed_to),
            )
            steps.actions.extend(step.actions)
            if step.draining:
                draining[cluster.name] = since
        return draining

    # Objects

    def _create_and_correct(
        self, roles: ClusterRoles, target_view: ApplicationView, next_active: Cluster | None, steps: _Steps
    ) -> None:
        """Add the steps that create missing objects and revert external changes of present ones."""
        target = roles.target
        if ("Secret", names.token_secret(self.key)) not in self.observed.children:
            steps.actions.append(CreateSecret(children.token_secret(self.resource), (names.AUTH_TOKEN_KEY,)))
        intended = raycluster.build_raycluster(
            self.resource, self.deployment, self.desired.config, self.hash, self.defaults, target
        )
        if roles.create and self.observed.kuberay_installed:
            steps.actions.append(Apply(intended))
            steps.events.append(event_texts.cluster_created(self.target_name))
        if target is not None:
            if operations := raycluster.corrections(intended, target):
                steps.actions.append(PatchCluster(target.name, operations))
                steps.events.append(event_texts.child_corrected("RayCluster", target.name))
            groups = {
                names.GATEWAY_GROUP: counts(self.desired.config, GATEWAY),
                names.ENGINE_GROUP: counts(self.desired.config, ENGINE),
            }
            patch = bounds_patch(target, groups, _replica_counts(target_view), _stopping_counts(target_view))
            if patch:
                steps.actions.append(PatchCluster(target.name, patch))
        selected = next_active.name if next_active is not None else self.target_name
        for intended_child in (
            children.service(self.resource, self.deployment, selected),
            self._budget(self._view(next_active)),
            children.network_policy(self.resource, self.deployment, self.defaults),
        ):
            if intended_child is not None:
                self._apply_child(intended_child, steps)

    def _apply_child(self, intended: Mapping[str, Any], steps: _Steps) -> None:
        kind, name = str(intended["kind"]), str(intended["metadata"]["name"])
        live = self.observed.children.get((kind, name))
        if children.matches_intended(intended, live):
            return
        if kind == "Service" and (operations := children.port_corrections(intended, live)):
            steps.actions.append(PatchService(name, operations))
        steps.actions.append(Apply(intended, "" if live is None else str(live["metadata"]["uid"])))
        if live is not None and children.was_applied(intended, live):
            steps.events.append(event_texts.child_corrected(kind, name))

    def _budget(self, active_view: ApplicationView) -> dict[str, Any] | None:
        """Return the budget for the present number of engines, which under autoscaling only Serve knows."""
        if self._suspend:
            return None
        engines = counts(self.desired.config, ENGINE)
        live = self.observed.children.get(("PodDisruptionBudget", names.disruption_budget(self.key)))
        if self.deployment.spec.autoscaling is None:
            replicas = engines.minimum
        elif active_view.engines is not None:
            replicas = max(engines.minimum, min(active_view.engines.target, engines.maximum))
        else:
            replicas = max(engines.minimum, 0 if live is None else int(live["spec"].get("minAvailable", 0)) + 1)
        return children.disruption_budget(self.resource, replicas)

    def _obsolete_children(self, active_view: ApplicationView) -> list[Delete]:
        """Return deletions of the objects that the spec no longer needs."""
        obsolete = []
        if self._budget(active_view) is None:
            obsolete.append(("policy/v1", "PodDisruptionBudget", names.disruption_budget(self.key)))
        if not self.deployment.managed.network_policy:
            obsolete.append(("networking.k8s.io/v1", "NetworkPolicy", names.network_policy(self.key)))
        return [
            Delete(version, kind, name, str(live["metadata"].get("uid", "")))
            for version, kind, name in obsolete
            if (live := self.observed.children.get((kind, name))) is not None
        ]

    # The application

    def _deploy(
        self,
        roles: ClusterRoles,
        target_view: ApplicationView,
        decision: DeployDecision,
        steps: _Steps,
        *,
        retried: bool,
    ) -> None:
        """Add the steps that deploy the application to the target."""
        target, desired = roles.target, self.desired
        if target is None:
            return
        if target is not roles.active and target_view.sync is SyncState.MISSING:
            desired = self._with_active_engines(self._view(roles.active))
        actions, events = event_texts.deploy(self._address(target), desired, target_view, decision, retried=retried)
        steps.actions.extend(actions)
        steps.events.extend(events)

    def _with_active_engines(self, active_view: ApplicationView) -> DesiredApplication:
        """Return the application for a new cluster.

        It takes over the load of the active cluster, so it starts with as many engines.
        """
        if self.deployment.spec.autoscaling is None or active_view.engines is None:
            return self.desired
        return with_initial_engines(self.desired, active_view.engines.target)

    def _view(self, cluster: Cluster | None) -> ApplicationView:
        if cluster is None:
            return ApplicationView(SyncState.UNKNOWN)
        answer = self.observed.serve.get(self._address(cluster))
        return view_application(answer, self.desired, self.memory, self.resource.generation)

    # The report

    def _ray(self, roles: ClusterRoles, target_view: ApplicationView) -> Verdict:
        """Return the verdict of the condition ``RayClusterReady``."""
        if self._suspend:
            return conditions.no(Reason.SUSPENDING if self.observed.clusters else Reason.SUSPENDED)
        if not self.observed.kuberay_installed:
            return conditions.no(
                Reason.KUBERAY_NOT_INSTALLED, f"Kubernetes knows no RayCluster; install KubeRay: {KUBERAY_COMMAND}"
            )
        if roles.target is None:
            return conditions.no(
                Reason.RAY_CLUSTER_PENDING, f"RayCluster {self.target_name} {self._pending_message(roles)}"
            )
        return self._head(roles.target, target_view)

    def _pending_message(self, roles: ClusterRoles) -> str:
        present = self.observed.clusters
        if present and (roles.stop or any(cluster.deleting for cluster in present)):
            return f"waits until RayCluster {present[0].name} is gone"
        return "is being created"

    def _head(self, target: Cluster, view: ApplicationView) -> Verdict:
        reach = view.serve.reach if view.serve is not None else Reach.UNREACHABLE
        if target.head_ready and reach is Reach.AUTH_FAILED:
            secret = names.token_secret(self.key)
            return conditions.no(
                Reason.AUTH_FAILED,
                f"RayCluster {target.name} rejects the token in Secret {secret}, which was changed: restore the old "
                f"token, or delete Secret {secret}, and the operator creates a new cluster with a new token",
            )
        if target.head_ready and reach is not Reach.UNREACHABLE:
            return ray_verdict.answering(reach, view)
        detail = target.message or (view.serve.message if view.serve is not None else "")
        if target.name == self.memory.cluster and self.memory.config_hash:
            message = f"the head of RayCluster {target.name} does not answer; {detail}".rstrip("; ")
            return ray_verdict.silent(self.memory, message, self.now)
        return conditions.no(
            Reason.HEAD_NOT_READY, f"the head of RayCluster {target.name} is not ready; {detail}".rstrip("; ")
        )

    def _active_cluster(self, cluster: Cluster | None) -> ActiveCluster:
        if cluster is None:
            return ActiveCluster()
        version = str((cluster.document.get("spec") or {}).get("rayVersion") or "")
        return ActiveCluster(cluster.name, self._address(cluster), cluster.spec_hash, cluster.image, version)

    def _address(self, cluster: Cluster) -> str:
        return self.defaults.dashboard_of(self.key, cluster.name)


def _replica_counts(view: ApplicationView) -> Mapping[str, int] | None:
    """Return the replicas of each worker group, stopping ones too; None during a roll, or if Serve reports none."""
    if not view.settled or view.engines is None or view.gateways is None:
        return None
    return {names.ENGINE_GROUP: len(view.engines.replicas), names.GATEWAY_GROUP: len(view.gateways.replicas)}


def _stopping_counts(view: ApplicationView) -> Mapping[str, int]:
    groups = ((names.ENGINE_GROUP, view.engines), (names.GATEWAY_GROUP, view.gateways))
    return {
        name: sum(replica.state == "STOPPING" for replica in deployment.replicas)
        for name, deployment in groups
        if deployment is not None
    }
