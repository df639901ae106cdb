"""Alerts and the dashboard name metrics, labels and reasons that exist."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo_operator.metrics import Metrics
from octavo_operator.model import conditions

Document = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference" / "metrics.md"
_METRIC = re.compile(r"\boctavo_[a-z0-9_]+")
_SELECTOR = re.compile(r"(octavo_[a-z0-9_]+)\{([^}]*)\}")
TARGET_LABELS = {"namespace", "pod", "deployment"}
"""Prometheus adds them by the monitors, beside a metric's own."""


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    """Labels of each series that a gateway or the operator shows."""
    found: dict[str, set[str]] = {}
    for line in REFERENCE.read_text().splitlines():
        if match := re.match(r"\| `(octavo_\w+)` \| (\w+) \| (.*?) \|", line):
            _add(found, match[1], match[2], set(re.findall(r"`(\w+)`", match[3])))
    for name, collector in Metrics().registry._names_to_collectors.items():
        found[name] = set(collector._labelnames) | ({"le"} if name.endswith("_bucket") else set())
    return found


def _add(found: dict[str, set[str]], name: str, kind: str, labels: set[str]) -> None:
    if kind == "histogram":
        found |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}
    else:
        found[name] = labels


@pytest.fixture(scope="module")
def expressions(render: Callable[..., list[Document]], find: Callable[..., Document]) -> list[str]:
    everything = yaml.safe_load((ROOT / "helm" / "octavo" / "ci" / "monitoring-values.yaml").read_text())
    documents = render(everything)
    rules = find(documents, "PrometheusRule")["spec"]["groups"][0]["rules"]
    dashboard = json.loads(find(documents, "ConfigMap")["data"]["octavo.json"])
    return [rule["expr"] for rule in rules] + list(_queries(dashboard))


def _queries(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            if name in ("expr", "query") and isinstance(value, str) and "octavo_" in value:
                yield value
            else:
                yield from _queries(value)
    elif isinstance(node, list):
        for value in node:
            yield from _queries(value)


def test_every_metric_in_an_alert_or_a_panel_exists(known: dict[str, set[str]], expressions: list[str]) -> None:
    used = {name for expression in expressions for name in _METRIC.findall(expression)}
    assert len(used) > 20
    assert used - known.keys() == set()


def test_every_label_in_a_selector_exists(known: dict[str, set[str]], expressions: list[str]) -> None:
    seen = 0
    for expression in expressions:
        for name, selector in _SELECTOR.findall(expression):
            labels = set(re.findall(r"(\w+)\s*[=!]", selector))
            assert labels <= known[name] | TARGET_LABELS, (name, selector)
            seen += len(labels)
    assert seen > 20


def test_conditions_and_reasons_in_alerts_exist(expressions: list[str]) -> None:
    seen = 0
    for expression in expressions:
        for label, known in (("type", set(conditions.Type)), ("reason", set(conditions.Reason))):
            for words in re.findall(rf'\b{label}!?[=~]+"([^"]+)"', expression):
                assert set(words.split("|")) <= {str(word) for word in known}
                seen += 1
    assert seen >= 4


def test_alerts_say_how_bad_it_is_and_take_further_labels(
    render: Callable[..., list[Document]], find: Callable[..., Document]
) -> None:
    rules = find(render({"prometheusRule": {"enabled": True, "alertLabels": {"team": "a"}}}), "PrometheusRule")
    alerts = rules["spec"]["groups"][0]["rules"]
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    for rule in alerts:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["labels"]["team"] == "a"
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_panels_do_not_overlap_and_have_their_own_ids(
    render: Callable[..., list[Document]], find: Callable[..., Document]
) -> None:
    dashboard = json.loads(find(render({"grafanaDashboard": {"enabled": True}}), "ConfigMap")["data"]["octavo.json"])
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))


def test_gateways_are_scraped_where_deployments_are_watched(
    render: Callable[..., list[Document]], find: Callable[..., Document]
) -> None:
    def scope(values: Document) -> Document:
        return dict(
            find(render({"podMonitor": {"enabled": True}, **values}), "PodMonitor")["spec"]["namespaceSelector"]
        )

    assert scope({}) == {"matchNames": ["octavo-system"]}
    assert scope({"watchNamespaces": ["b", "a"]}) == {"matchNames": ["a", "b"]}
    assert scope({"clusterWide": True}) == {"any": True}


def test_the_pod_monitor_selects_the_pods_that_the_operator_makes(
    render: Callable[..., list[Document]], find: Callable[..., Document]
) -> None:
    from octavo_api.resource.deployment import ServingDeployment
    from octavo_operator.model import names
    from octavo_operator.model.observed import Key
    from octavo_operator.objects import children, pods

    key = Key("n", "a")
    deployment = ServingDeployment.read(
        {
            "apiVersion": "serving.octavo.dev/v1alpha1",
            "kind": "ServingDeployment",
            "metadata": {"name": "a", "namespace": "n"},
            "spec": {"model": {"uri": "embedded://smollm2"}},
        }
    )
    template = pods.gateway_group(key, deployment, "image", children.labels(key))["template"]
    labels, container = template["metadata"]["labels"], template["spec"]["containers"][0]
    monitor = find(render({"podMonitor": {"enabled": True}}), "PodMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    assert monitor["selector"]["matchExpressions"] == [{"key": names.DEPLOYMENT_LABEL, "operator": "Exists"}]
    assert names.DEPLOYMENT_LABEL in labels
    assert monitor["podMetricsEndpoints"][0]["port"] in {port["name"] for port in container["ports"]}
