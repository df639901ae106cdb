"""Makes the objects under manifests/ of the chart, so that kustomize and helm install the same.

    python tools/render_manifests.py          writes them
    python tools/render_manifests.py --check  fails where one is stale

The kustomizations themselves, with all that differs from the chart, are written by hand. Needs helm-python-sdk.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart

ROOT = Path(__file__).resolve().parent.parent
RELEASE, NAMESPACE = "octavo", "octavo-system"
HEAD = "# Made from helm/octavo by tools/render_manifests.py; do not edit.\n"

Document = dict[str, Any]

_HELMS_LABELS = ("app.kubernetes.io/managed-by", "helm.sh/chart")

FILES: Mapping[str, tuple[Mapping[str, Any], tuple[str, ...]]] = {
    "base/rbac/serviceaccount.yaml": ({}, ("ServiceAccount",)),
    "base/rbac/role.yaml": ({}, ("Role", "RoleBinding")),
    "base/operator/deployment.yaml": ({}, ("Deployment",)),
    "overlays/cluster-wide/clusterrole.yaml": ({"clusterWide": True}, ("ClusterRole", "ClusterRoleBinding")),
    "components/monitoring/service.yaml": ({"metrics": {"service": {"enabled": True}}}, ("Service",)),
    "components/monitoring/servicemonitor.yaml": (
        {"serviceMonitor": {"enabled": True}, "metrics": {"service": {"enabled": True}}},
        ("ServiceMonitor",),
    ),
    "components/monitoring/podmonitor.yaml": ({"podMonitor": {"enabled": True}}, ("PodMonitor",)),
    "components/monitoring/prometheusrule.yaml": ({"prometheusRule": {"enabled": True}}, ("PrometheusRule",)),
    "components/monitoring/dashboard.yaml": ({"grafanaDashboard": {"enabled": True}}, ("ConfigMap",)),
    "components/network-policy/operator.yaml": ({"networkPolicy": {"enabled": True}}, ("NetworkPolicy",)),
}
"""File under manifests/: the chart's values, and the kinds that are taken of what it renders."""


def without_helm(document: Document) -> Document:
    """Leaves out what only helm reads: its labels and annotations."""
    if isinstance(document, dict):
        kept = {name: without_helm(value) for name, value in document.items() if name not in _HELMS_LABELS}
        annotations = kept.get("annotations")
        if isinstance(annotations, dict):
            ours = {name: value for name, value in annotations.items() if not name.startswith("helm.sh/")}
            kept["annotations"] = ours
            if not ours:
                del kept["annotations"]
        return kept
    if isinstance(document, list):
        return [without_helm(item) for item in document]  # type: ignore[return-value]
    return document


def rendered(values: Mapping[str, Any]) -> list[Document]:
    """Returns what helm would install; tests of helm's are no part of it."""
    with Chart.load(ROOT / "helm" / "octavo") as chart:
        texts = chart.render(dict(values), name=RELEASE, namespace=NAMESPACE)
    documents = [
        document
        for path, text in sorted(texts.items())
        if path.endswith(".yaml")
        for document in yaml.safe_load_all(text)
        if document
    ]
    return [d for d in documents if "helm.sh/hook" not in d["metadata"].get("annotations", {})]


def selected(values: Mapping[str, Any], kinds: tuple[str, ...]) -> list[Document]:
    documents = [without_helm(document) for document in rendered(values) if document["kind"] in kinds]
    for document in documents:
        if document["kind"] == "PodMonitor":
            # Its own namespace then, whichever an overlay puts it in.
            del document["spec"]["namespaceSelector"]
    return documents


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as such."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def text(name: str) -> str:
    values, kinds = FILES[name]
    return HEAD + yaml.dump_all(selected(values, kinds), Dumper=_Dumper, sort_keys=False, width=120)


def main() -> None:
    stale = []
    for name in FILES:
        path, fresh = ROOT / "manifests" / name, text(name)
        if "--check" not in sys.argv[1:]:
            path.write_text(fresh)
        elif not path.exists() or path.read_text() != fresh:
            stale.append(f"manifests/{name}")
    if stale:
        raise SystemExit(f"stale: {', '.join(stale)}; run python tools/render_manifests.py")


if __name__ == "__main__":
    main()
