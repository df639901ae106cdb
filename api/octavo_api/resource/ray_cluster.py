"""The Ray cluster of a ``ServingDeployment``: managed through KubeRay, or external."""

from typing import Literal

from octavo_api.resource.sections import Passthrough, RayTokenRef, Resources, Section, Words
from octavo_api.rules import Rule
from octavo_api.settings import Change, setting


class Head(Section):
    """The pod that runs Ray's control plane and no replica."""

    resources: Resources = setting(
        Resources(), "Resources of the head pod.", change=Change.NEW_CLUSTER, auto="1 CPU and 2Gi"
    )


class Managed(Section):
    """A ``RayCluster`` that the operator creates. All fields except ``networkPolicy`` need a new cluster."""

    image: str | None = setting(
        None,
        "Image with Octavo and Ray, of head, gateways and engines.",
        change=Change.NEW_CLUSTER,
        auto="the operator's default when the cluster is created, kept while the cluster exists",
        min_length=1,
        max_length=512,
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = setting(
        None, "Pull policy of the image in all pods.", change=Change.NEW_CLUSTER, auto="Kubernetes' rule by tag"
    )
    image_pull_secrets: list[Passthrough] = setting(
        [], "Secrets for the image's registry, as in a pod: `{name: NAME}`.", change=Change.NEW_CLUSTER, max_length=16
    )
    head: Head = setting(Head(), "The pod that runs Ray's control plane and no replica.", change=Change.NEW_CLUSTER)
    service_account_name: str | None = setting(
        None,
        "Service account of gateway and engine pods.",
        change=Change.NEW_CLUSTER,
        auto="the namespace's default",
        min_length=1,
        max_length=253,
    )
    priority_class_name: str | None = setting(
        None,
        "PriorityClass of all pods; it does not affect the priority of requests.",
        change=Change.NEW_CLUSTER,
        auto="none",
        min_length=1,
        max_length=253,
    )
    runtime_class_name: str | None = setting(
        None, "RuntimeClass of engine pods.", change=Change.NEW_CLUSTER, auto="none", min_length=1, max_length=253
    )
    node_selector: Words = setting(
        {}, "Labels that the nodes of engine pods must have.", change=Change.NEW_CLUSTER, max_length=64
    )
    tolerations: list[Passthrough] = setting(
        [], "Taints that engine pods tolerate, as in a pod.", change=Change.NEW_CLUSTER, max_length=64
    )
    affinity: Passthrough | None = setting(
        None, "Affinity of engine pods, as in a pod.", change=Change.NEW_CLUSTER, auto="none"
    )
    topology_spread_constraints: list[Passthrough] = setting(
        [], "Topology spread constraints of engine pods, as in a pod.", change=Change.NEW_CLUSTER, max_length=16
    )
    env: list[Passthrough] = setting(
        [],
        "Further environment variables of all pods' Ray container, as in a container.",
        change=Change.NEW_CLUSTER,
        max_length=128,
    )
    volumes: list[Passthrough] = setting(
        [], "Further volumes of all pods, as in a pod.", change=Change.NEW_CLUSTER, max_length=64
    )
    volume_mounts: list[Passthrough] = setting(
        [], "Further mounts of all pods' Ray container, as in a container.", change=Change.NEW_CLUSTER, max_length=64
    )
    gcs_fault_tolerance: Passthrough | None = setting(
        None,
        "KubeRay's `gcsFaultToleranceOptions`, passed through: with a Redis a lost head interrupts no stream.",
        change=Change.NEW_CLUSTER,
        auto="none",
    )
    network_policy: bool = setting(
        False, "Allow only the operator and the cluster's own pods to reach Ray's ports.", change=Change.LIVE
    )


class External(Section):
    """An existing Ray cluster, with this version of Octavo in its environment."""

    dashboard_url: str = setting(
        ...,
        "Address of Ray's dashboard, `http://HOST:8265`.",
        change=Change.IMMUTABLE,
        alias="dashboardURL",
        max_length=2048,
        pattern=r"^https?://[^/?#\s@]+/?$",
    )
    auth_secret_ref: RayTokenRef | None = setting(
        None, "Ray's token; the operator reads it at each use.", change=Change.LIVE, auto="no token is sent"
    )


class RayCluster(Section):
    """The Ray cluster that serves: managed or external. The choice cannot be changed."""

    RULES = (
        Rule(
            "managed and external exclude each other",
            "!(has(self.managed) && has(self.external))",
            lambda cluster: cluster.managed is None or cluster.external is None,
        ),
    )

    managed: Managed | None = setting(
        None,
        "A `RayCluster` that the operator creates through KubeRay. Its fields can be changed.",
        change=Change.IMMUTABLE,
        auto="managed, unless `external` is given",
    )
    external: External | None = setting(None, "An existing Ray cluster.", change=Change.IMMUTABLE, auto="none")
