"""Properties of every rendering of the chart."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

Document = dict[str, Any]

CLUSTER_KINDS = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
RECOMMENDED = {
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/component",
    "app.kubernetes.io/part-of",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
}


def ours(documents: list[Document]) -> list[Document]:
    """All but the resource definition, which is the same in kustomize, and the user's own extra objects."""
    return [
        d for d in documents if d["kind"] != "CustomResourceDefinition" and not d["metadata"]["name"].endswith("-extra")
    ]


def pod_specs(documents: list[Document]) -> Iterator[tuple[str, Document]]:
    for document in documents:
        if document["kind"] == "Pod":
            yield document["metadata"]["name"], document["spec"]
        elif document["kind"] == "Deployment":
            yield document["metadata"]["name"], document["spec"]["template"]["spec"]


def violations(spec: Document) -> list[str]:
    """Return the rules of Kubernetes' Pod Security Standard `restricted` that a pod breaks."""
    found = [f"{field} is set" for field in ("hostNetwork", "hostPID", "hostIPC", "hostAliases") if spec.get(field)]
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    for volume in spec.get("volumes", ()):
        found += [f"volume {volume['name']}: {kind}" for kind in volume.keys() - allowed - {"name"}]
    pod = spec.get("securityContext", {})
    containers = [*spec.get("containers", ()), *spec.get("initContainers", ()), *spec.get("ephemeralContainers", ())]
    for container in containers:
        name, own = container["name"], container.get("securityContext", {})

        def effective(field: str, own: Document = own) -> object:
            return own.get(field, pod.get(field))

        checks = {
            "privileged": not own.get("privileged"),
            "allowPrivilegeEscalation is not false": own.get("allowPrivilegeEscalation") is False,
            "does not drop ALL": "ALL" in own.get("capabilities", {}).get("drop", ()),
            "adds capabilities": set(own.get("capabilities", {}).get("add", ())) <= {"NET_BIND_SERVICE"},
            "runAsNonRoot is not true": effective("runAsNonRoot") is True,
            "runs as 0": effective("runAsUser") != 0,
            "no seccomp profile": (effective("seccompProfile") or {}).get("type") in {"RuntimeDefault", "Localhost"},
            "hostPort": not any(port.get("hostPort") for port in container.get("ports", ())),
            "procMount": own.get("procMount", "Default") == "Default",
        }
        found += [f"{name}: {message}" for message, holds in checks.items() if not holds]
    return found


def test_every_document_is_an_object(documents: list[Document]) -> None:
    for document in documents:
        assert document["apiVersion"]
        assert document["kind"]
        assert document["metadata"]["name"]


def test_no_object_is_rendered_twice(documents: list[Document]) -> None:
    keys = [(d["kind"], d["metadata"].get("namespace"), d["metadata"]["name"]) for d in documents]
    assert len(keys) == len(set(keys))


def test_all_objects_have_the_recommended_labels(documents: list[Document]) -> None:
    for document in ours(documents):
        labels = document["metadata"]["labels"]
        assert labels.keys() >= RECOMMENDED, document["metadata"]["name"]
        assert all(isinstance(value, str) and len(value) <= 63 for value in labels.values())


def test_objects_name_their_namespace_and_fit_63_characters(documents: list[Document]) -> None:
    for document in documents:
        assert ("namespace" in document["metadata"]) == (document["kind"] not in CLUSTER_KINDS)
        if document["kind"] not in CLUSTER_KINDS:
            assert len(document["metadata"]["name"]) <= 63


@pytest.mark.parametrize("release", ["r", "octavo", "x" * 53])
def test_names_fit_with_the_longest_release_name(render: Callable[..., list[Document]], release: str) -> None:
    """53 characters are the most that Helm takes."""
    everything = {
        "metrics": {"service": {"enabled": True}},
        "serviceMonitor": {"enabled": True},
        "podMonitor": {"enabled": True},
        "grafanaDashboard": {"enabled": True},
    }
    for document in render(everything, release=release, namespace="n" * 63):
        if document["kind"] not in CLUSTER_KINDS:
            assert len(document["metadata"]["name"]) <= 63


def test_selectors_hold_nothing_that_an_upgrade_changes(documents: list[Document]) -> None:
    for document in documents:
        spec = document.get("spec") or {}
        if document["kind"] == "Deployment":
            selector = spec["selector"]["matchLabels"]
        elif document["kind"] == "Service":
            selector = spec["selector"]
        elif document["kind"] == "NetworkPolicy":
            selector = spec["podSelector"]["matchLabels"]
        else:
            continue
        assert selector.keys() == {"app.kubernetes.io/name", "app.kubernetes.io/instance"}


def test_selectors_select_the_operator(documents: list[Document], find: Callable[..., Document]) -> None:
    deployment = find(documents, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    for document in documents:
        if document["kind"] == "Service":
            assert document["spec"]["selector"].items() <= labels.items()
            monitors = [d for d in documents if d["kind"] == "ServiceMonitor"]
            for monitor in monitors:
                wanted = monitor["spec"]["selector"]["matchLabels"].items()
                assert wanted <= document["metadata"]["labels"].items()


def test_every_pod_fits_pod_security_restricted(documents: list[Document]) -> None:
    specs = dict(pod_specs(documents))
    assert len(specs) == 2
    assert [f"{name}: {what}" for name, spec in specs.items() for what in violations(spec)] == []


def test_roots_are_read_only_and_tmp_can_be_written(documents: list[Document], find: Callable[..., Document]) -> None:
    for _, spec in pod_specs(documents):
        assert all(c["securityContext"]["readOnlyRootFilesystem"] is True for c in spec["containers"])
    operator = find(documents, "Deployment")["spec"]["template"]["spec"]
    assert {"name": "tmp", "mountPath": "/tmp"} in operator["containers"][0]["volumeMounts"]
    assert {"name": "tmp", "emptyDir": {}} in operator["volumes"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hostNetwork": True}, "hostNetwork is set"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "volume v: hostPath"),
        ({"securityContext": {"runAsNonRoot": True}}, "operator: no seccomp profile"),
        ({"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}, "operator: runAsNonRoot is not true"),
    ],
)
def test_the_validator_sees_what_restricted_forbids(
    render: Callable[..., list[Document]], find: Callable[..., Document], change: Document, says: str
) -> None:
    spec = find(render(), "Deployment")["spec"]["template"]["spec"]
    assert violations(spec) == []
    assert violations({**spec, **change}) == [says]


def test_there_is_one_operator_and_the_old_one_ends_first(
    documents: list[Document], find: Callable[..., Document]
) -> None:
    spec = find(documents, "Deployment")["spec"]
    assert spec["replicas"] in (0, 1)
    assert spec["strategy"] == {"type": "Recreate"}
