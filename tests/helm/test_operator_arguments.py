"""The operator accepts the arguments that the chart gives it."""

import re
from collections.abc import Callable
from typing import Any

from octavo_operator import options

Document = dict[str, Any]


def container(documents: list[Document], find: Callable[..., Document]) -> Document:
    return dict(find(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0])


def started(documents: list[Document], find: Callable[..., Document]) -> options.Options:
    """Reads the arguments as the operator does, with the kubelet's variables put in."""
    found = container(documents, find)
    known = {"POD_NAMESPACE": "octavo-system"}
    command, *arguments = [re.sub(r"\$\((\w+)\)", lambda match: known[match[1]], word) for word in found["args"]]
    assert command == "operator"
    return options.parse_options(arguments, {})


def test_every_set_of_values_starts_an_operator(
    values: Document, documents: list[Document], find: Callable[..., Document]
) -> None:
    chosen = started(documents, find)
    watched = values.get("watchNamespaces") or ["octavo-system"]
    assert chosen.namespaces == (() if values.get("clusterWide") else tuple(sorted(watched)))
    assert chosen.image
    assert chosen.log_level == values.get("operator", {}).get("logLevel", "info")
    assert chosen.workers == values.get("operator", {}).get("workers", 4)


def test_network_policies_of_clusters_let_this_very_operator_in(
    documents: list[Document], find: Callable[..., Document]
) -> None:
    chosen, deployment = started(documents, find), find(documents, "Deployment")
    assert chosen.operator_namespace == deployment["metadata"]["namespace"]
    assert chosen.operator_labels == deployment["spec"]["selector"]["matchLabels"]


def test_ports_are_those_that_the_operator_opens(documents: list[Document], find: Callable[..., Document]) -> None:
    chosen, found = started(documents, find), container(documents, find)
    ports = {port["name"]: port["containerPort"] for port in found["ports"]}
    assert ports == {"health": chosen.health_port, "metrics": chosen.metrics_port}
    probes = {name: found[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe["port"] for probe in probes.values()} == {"health"}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startupProbe": "/healthz",
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
    }
