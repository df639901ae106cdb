"""The chart grants the operator what it needs: no call is refused, and no verb is granted for nothing."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo_testing.kube.audit import Right
from octavo_testing.kube.cluster import Cluster
from octavo_testing.kube.documents import deployment
from octavo_testing.kube.kubectl import Kubectl
from octavo_testing.kube.operator import Installation
from octavo_testing.kube.serve_stub import Stub, running_stub
from octavo_testing.kube.serving import Serving
from octavo_testing.waiting import eventually

NAMESPACE = "rbac"
CHECKED_BY_ADMISSION = {Right("update", "serving.octavo.dev", "servingdeployments/finalizers")}
"""Asked for by the plugin OwnerReferencesPermissionEnforcement in the name of whoever sets an owner that blocks."""


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stub]:
    with running_stub(tmp_path_factory.mktemp("stub")) as stub:
        yield stub


@pytest.fixture(scope="module")
def everything_done(crd: Cluster, stub: Stub) -> Installation:
    """One life of a deployment of each kind, with all that it can ask for, by an operator that serves one namespace.

    It has an account of its own, so its calls differ from the calls of other operators.
    """
    installation = Installation.make(crd, "--set", "crds.install=false", namespace=NAMESPACE, all_namespaces=False)
    kubectl = crd.kubectl.within(NAMESPACE)
    with installation.operator(name="operator-rbac", dashboard=stub.dashboard) as operator:
        managed(kubectl)
        external(kubectl, stub)
        assert operator.healthy()
        time.sleep(1)
    return installation


def managed(kubectl: Kubectl) -> None:
    kubectl.create(
        deployment(
            "managed",
            model={"uri": "hf://org/name", "secretRef": {"name": "token"}, "cache": {"claimName": "cache"}},
            replicas=2,
            endpoint={"apiKeySecretRef": {"name": "keys"}},
            rayCluster={"managed": {"networkPolicy": True}},
        )
    )
    serving = Serving(kubectl, "managed")
    serving.wait("SpecValid", "False")
    kubectl.run("create", "secret", "generic", "token", "--from-literal=HF_TOKEN=hf_1")
    kubectl.run("create", "secret", "generic", "keys", "--from-literal=api-keys=a-key")
    kubectl.create(*claim("cache"))
    serving.wait_ready()
    serving.edit({"replicas": 3, "endpoint": {"service": {"annotations": {"a": "b"}}}})
    serving.wait_ready()
    serving.edit({"resources": {"limits": {"cpu": 3}}})
    serving.wait_ready()
    serving.edit({"replicas": 1, "rayCluster": {"managed": {"networkPolicy": False}}})
    serving.wait_ready()
    eventually("no budget, no policy", lambda: not kubectl.list("pdb,networkpolicies"))
    serving.edit({"suspend": True})
    serving.wait("Ready", "False", "Suspended")
    kubectl.run("delete", "sdep", "managed", "--timeout=30s")


def claim(name: str) -> list[dict[str, Any]]:
    """A claim and the volume that it is bound to: pods are not scheduled before."""
    size, modes = {"storage": "1Gi"}, ["ReadWriteMany"]
    volume = {"capacity": size, "accessModes": modes, "hostPath": {"path": "/nowhere"}, "storageClassName": ""}
    spec = {"resources": {"requests": size}, "accessModes": modes, "volumeName": name, "storageClassName": ""}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec},
    ]


def external(kubectl: Kubectl, stub: Stub) -> None:
    kubectl.run("create", "secret", "generic", "ray-token", "--from-literal=auth_token=t")
    reference = {"dashboardURL": stub.url, "authSecretRef": {"name": "ray-token"}}
    kubectl.create(deployment("external", rayCluster={"external": reference}))
    Serving(kubectl, "external").wait_ready()
    kubectl.run("delete", "sdep", "external", "--timeout=30s")


def test_no_call_is_refused(everything_done: Installation) -> None:
    refused = [call for call in everything_done.recorded() if call.code in (401, 403)]
    assert refused == []


def test_every_call_is_granted_by_the_rendered_role(everything_done: Installation) -> None:
    recorded = {call.right for call in everything_done.recorded()}
    assert len(recorded) > 15
    assert recorded - everything_done.granted() == set()


def test_everything_granted_is_used(everything_done: Installation) -> None:
    recorded = {call.right for call in everything_done.recorded()}
    assert everything_done.granted() - recorded - CHECKED_BY_ADMISSION == set()


def test_owners_that_block_deletion_need_the_right_that_no_call_shows(everything_done: Installation) -> None:
    """The cluster runs with the plugin that asks for it, so children could not be made without."""
    assert everything_done.granted() >= CHECKED_BY_ADMISSION


def test_no_secret_is_listed_and_none_is_read_that_the_spec_does_not_name(everything_done: Installation) -> None:
    read = [call for call in everything_done.recorded() if call.right.resource == "secrets"]
    assert {call.right.verb for call in read} <= {"get", "create"}
    assert {call.name for call in read if call.right.verb == "get"} <= {
        "token",
        "keys",
        "ray-token",
        "managed-ray-token",
        "external-ray-token",
    }


def test_every_call_stays_in_the_operators_namespace(everything_done: Installation) -> None:
    assert {call.namespace for call in everything_done.recorded()} == {NAMESPACE}


def test_the_record_is_kept(everything_done: Installation, tmp_path: Path) -> None:
    """For people who review the role: what was called how often."""
    counts: dict[str, int] = {}
    for call in everything_done.recorded():
        name = " ".join(call.right)
        counts[name] = counts.get(name, 0) + 1
    text = json.dumps(dict(sorted(counts.items())), indent=1)
    print(text)
    (tmp_path / "rbac.json").write_text(text)
