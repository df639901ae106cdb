"""The resource definition in a real API server: what it takes, what it refuses and in which words."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo_testing.kube.cluster import Cluster
from octavo_testing.kube.documents import deployment, merged
from octavo_testing.kube.kubectl import Kubectl, Refused

EXTERNAL = {"external": {"dashboardURL": "http://ray.example:8265"}}
NAME = "servingdeployments.serving.octavo.dev"
ROOT = Path(__file__).parents[1]
CRD_FILE = ROOT / "manifests" / "base" / "crd" / "servingdeployments.yaml"
CASES = yaml.safe_load((ROOT / "tests" / "api" / "schema" / "resource_cases.yaml").read_text())


REFUSED = {
    "unknown scheme": ({"model": {"uri": "ftp://a/b"}}, "spec.model.uri", "must start with one of embedded://, hf://"),
    "no model": ({"model": {"uri": None}}, "spec.model.uri", "Required value"),
    "revision of a file": ({"model": {"revision": "main"}}, "spec.model.revision", "revision requires a hf:// model"),
    "both kinds of cluster": (
        {"rayCluster": {"managed": {}, **EXTERNAL}},
        "spec.rayCluster",
        "managed and external exclude each other",
    ),
    "bounds crossed": (
        {"autoscaling": {"minReplicas": 3, "maxReplicas": 2}},
        "spec.autoscaling.minReplicas",
        "minReplicas must not exceed maxReplicas",
    ),
    "bounds crossed by the default": (
        {"autoscaling": {"maxReplicas": 0}},
        "spec.autoscaling.maxReplicas",
        "greater than or equal to 1",
    ),
    "one port twice": ({"endpoint": {"grpc": {"port": 8000}}}, "spec.endpoint", "http.port and grpc.port must differ"),
    "port out of range": ({"endpoint": {"http": {"port": 70000}}}, "spec.endpoint.http.port", "65535"),
    "new cluster where there is none": (
        {"rayCluster": EXTERNAL, "rollout": {"strategy": "NewCluster"}},
        "spec.rollout.strategy",
        "rollout.strategy NewCluster requires rayCluster.managed",
    ),
    "orphan in a cluster of its own": (
        {"deletionPolicy": "Orphan"},
        "spec.deletionPolicy",
        "deletionPolicy Orphan requires rayCluster.external",
    ),
    "claim in external mode": (
        {"rayCluster": EXTERNAL, "model": {"uri": "pvc://claim/model"}},
        "spec.model.uri",
        "is mounted into pods and requires rayCluster.managed",
    ),
    "token in external mode": (
        {"rayCluster": EXTERNAL, "model": {"uri": "hf://a/b", "secretRef": {"name": "token"}}},
        "spec.model.secretRef",
        "is mounted into pods and requires rayCluster.managed",
    ),
    "cache in external mode": (
        {"rayCluster": EXTERNAL, "model": {"uri": "hf://a/b", "cache": {"claimName": "cache"}}},
        "spec.model.cache",
        "is mounted into pods and requires rayCluster.managed",
    ),
    "certificate in external mode": (
        {"rayCluster": EXTERNAL, "endpoint": {"tlsSecretRef": {"name": "tls"}}},
        "spec.endpoint.tlsSecretRef",
        "is mounted into pods and requires rayCluster.managed",
    ),
    "keys in external mode": (
        {"rayCluster": EXTERNAL, "endpoint": {"apiKeySecretRef": {"name": "keys"}}},
        "spec.endpoint.apiKeySecretRef",
        "is mounted into pods and requires rayCluster.managed",
    ),
    "no address": ({"rayCluster": {"external": {"dashboardURL": "ray:8265"}}}, "dashboardURL", "should match"),
    "negative replicas": ({"replicas": -1}, "spec.replicas", "greater than or equal to 0"),
    "tiny cache": ({"engine": {"kvCacheMemoryBytes": "1Ki"}}, "kvCacheMemoryBytes", "must be at least 65536"),
    "tiny bodies": ({"router": {"maxBodyBytes": "1"}}, "maxBodyBytes", "must be at least 1024"),
    "no CPU": ({"resources": {"limits": {"cpu": "0"}}}, "spec.resources.limits.cpu", "must be more than 0"),
    "no memory": ({"resources": {"limits": {"memory": 0}}}, "spec.resources.limits.memory", "greater than or equal"),
    "unknown policy": ({"router": {"policy": "random"}}, "spec.router.policy", "supported values"),
    "unknown unit": ({"resources": {"limits": {"memory": "4 gigs"}}}, "spec.resources.limits.memory", "should match"),
}


def test_takes_and_refuses_what_the_types_do(crd: Cluster) -> None:
    """The table that the operator's types are held to, put to the API server."""
    accepted, refused = CASES["accepted"], CASES["refused"]
    said = complaints(crd.kubectl, [*accepted.values(), *(case["spec"] for case in refused.values())])
    for name, words in zip(accepted, said, strict=False):
        assert words == "", name
    for (name, case), words in zip(refused.items(), said[len(accepted) :], strict=True):
        assert case.get("served", case["message"]) in words, (name, words)


def test_names_the_field_that_is_wrong(crd: Cluster) -> None:
    said = complaints(crd.kubectl, [merged(deployment()["spec"], change) for change, _, _ in REFUSED.values()])
    for (name, (_, field, expected)), words in zip(REFUSED.items(), said, strict=True):
        assert field in words, (name, words)
        assert expected in words, (name, words)


def test_takes_every_number_that_the_schema_allows(crd: Cluster) -> None:
    """Both ends of each field's range: a limit that the server keeps as a double may shut out every value."""
    schema = yaml.safe_load(CRD_FILE.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    specs, paths = [], []
    for path, node in numbers(schema["properties"]["spec"]):
        highest = 2**63 - 1 if node["format"] == "int64" else 2**31 - 1
        for value in (node.get("minimum", 0), node.get("maximum", highest)):
            spec: dict[str, Any] = {}
            for part in reversed(path):
                spec = {part: spec or value}
            specs.append(merged(merged(deployment()["spec"], BESIDE.get(path[0], {})), spec))
            paths.append((path, value))
    said = complaints(crd.kubectl, specs)
    assert len(said) > 40
    for path, words in zip(paths, said, strict=True):
        assert words == "", path


BESIDE: dict[str, Any] = {
    "autoscaling": {"autoscaling": {"maxReplicas": 1024}},
    "engine": {"engine": {"maxNumBatchedTokens": 8192}},
}
"""What must stand beside a field."""


def numbers(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    for name, node in schema.get("properties", {}).items():
        if node.get("type") == "integer":
            yield (*path, name), node
        elif "properties" in node:
            yield from numbers(node, (*path, name))


def complaints(kubectl: Kubectl, specs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the API server's refusal of each spec, empty if it accepts the spec; nothing is stored."""
    documents = [deployment(f"case-{number}") | {"spec": spec} for number, spec in enumerate(specs)]
    try:
        kubectl.run("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(documents))
    except Refused as refused:
        text = str(refused)
    else:
        text = ""
    # One paragraph for each that is refused, which names it.
    parts = re.split(r'(?=The ServingDeployment "case-[0-9]+" is invalid)|(?=Error from server)', text)
    found = [""] * len(specs)
    for part in parts:
        if match := re.search(r'case-([0-9]+)"', part):
            found[int(match[1])] += part
        else:
            assert not part.strip(), part
    return found


@pytest.mark.parametrize("name", CASES["updates"])
def test_an_update_is_judged_against_what_is_stored(name: str, namespace: Kubectl) -> None:
    case = CASES["updates"][name]
    namespace.create({**deployment(), "spec": case["old"]})
    replace = yaml.safe_dump({**deployment(), "spec": case["new"]})
    if "message" not in case:
        namespace.run("replace", "-f", "-", stdin=replace)
        return
    with pytest.raises(Refused) as refused:
        namespace.run("replace", "-f", "-", stdin=replace)
    assert case["message"] in str(refused.value)


def test_a_name_of_forty_characters_is_taken_and_one_of_forty_one_refused(crd: Cluster) -> None:
    crd.kubectl.run("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(deployment("a" * 40)))
    for name in ("a" * 41, "1st", "a.b"):
        with pytest.raises(Refused, match="have at most 40 characters"):
            crd.kubectl.run("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(deployment(name)))


def test_a_misspelled_field_is_refused_by_kubectl(crd: Cluster) -> None:
    with pytest.raises(Refused, match=r'unknown field "spec\.engine\.maxNumSeq"'):
        crd.kubectl.create(deployment(engine={"maxNumSeq": 4}))


def test_kubectl_scale_sets_replicas_and_is_refused_beside_autoscaling(namespace: Kubectl) -> None:
    namespace.create(deployment())
    namespace.run("scale", "sdep/books", "--replicas=3")
    assert namespace.get("sdep", "books")["spec"]["replicas"] == 3
    namespace.patch("sdep", "books", {"spec": {"autoscaling": {"maxReplicas": 5}}})
    with pytest.raises(Refused, match=r"change autoscaling\.minReplicas and maxReplicas"):
        namespace.run("scale", "sdep/books", "--replicas=4")
    namespace.patch("sdep", "books", {"spec": {"autoscaling": None}})
    namespace.run("scale", "sdep/books", "--replicas=4")


def test_scale_tells_the_selector_and_the_replicas_that_exist(namespace: Kubectl) -> None:
    namespace.create(deployment())
    selector = "serving.octavo.dev/deployment=books,app.kubernetes.io/component=engine"
    namespace.patch("sdep", "books", {"status": {"replicas": 2, "selector": selector}}, "--subresource=status")
    scale = yaml.safe_load(namespace.run("get", "sdep", "books", "--subresource=scale", "-o", "yaml"))
    assert scale["spec"]["replicas"] == 1
    assert scale["status"] == {"replicas": 2, "selector": selector}


def test_status_and_spec_are_written_apart(namespace: Kubectl) -> None:
    namespace.create(deployment())
    namespace.patch("sdep", "books", {"spec": {"replicas": 7}, "status": {"replicas": 2}}, "--subresource=status")
    found = namespace.get("sdep", "books")
    assert found["spec"]["replicas"] == 1
    assert found["metadata"]["generation"] == 1
    namespace.patch("sdep", "books", {"spec": {"replicas": 7}, "status": {"replicas": 9}})
    found = namespace.get("sdep", "books")
    assert (found["spec"]["replicas"], found["status"]["replicas"]) == (7, 2)
    assert found["metadata"]["generation"] == 2


def test_columns_say_what_one_looks_for(namespace: Kubectl) -> None:
    namespace.create(deployment())
    status = {
        "replicas": 3,
        "readyReplicas": 2,
        "urls": {"http": "http://books.t:8000/v1"},
        "rayCluster": {"name": "books-1234abcd"},
        "conditions": [
            {
                "type": "Ready",
                "status": "False",
                "reason": "RollingOut",
                "message": "2 of 3 engines are new",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ],
    }
    namespace.patch("sdep", "books", {"status": status}, "--subresource=status")
    header, row = namespace.run("get", "sdep", "-o", "wide").splitlines()
    assert header.split() == ["NAME", "READY", "MODEL", "REPLICAS", "DESIRED", "REASON", "AGE", "URL", "RAY"]
    assert row.split()[:6] == ["books", "False", "embedded://smollm2", "2", "3", "RollingOut"]
    assert row.split()[7:] == ["http://books.t:8000/v1", "books-1234abcd"]
    assert "servingdeployment.serving.octavo.dev/books" in namespace.run("get", "llm", "-o", "name")


def test_explain_says_unit_default_and_effect_of_a_field(crd: Cluster) -> None:
    said = " ".join(crd.kubectl.run("explain", "sdep.spec.rollout.drainSeconds").split())
    assert "Unit: seconds. Default: 600. Change: live." in said


def test_appliers_own_what_they_applied_and_conflict_in_what_both_want(namespace: Kubectl) -> None:
    namespace.apply(deployment(replicas=2), server_side=True, manager="team")
    named = {"apiVersion": "serving.octavo.dev/v1alpha1", "kind": "ServingDeployment", "metadata": {"name": "books"}}
    namespace.apply({**named, "spec": {"router": {"replicas": 2}}}, server_side=True, manager="platform")
    found = namespace.get("sdep", "books")
    assert (found["spec"]["replicas"], found["spec"]["router"]["replicas"]) == (2, 2)
    with pytest.raises(Refused, match=r'conflict with "team".*\n?.*spec\.replicas'):
        namespace.apply({**named, "spec": {"replicas": 5}}, server_side=True, manager="platform")
    namespace.apply(deployment(), server_side=True, manager="team")
    assert namespace.get("sdep", "books")["spec"]["router"]["replicas"] == 2


def test_what_the_status_schema_does_not_know_is_dropped(namespace: Kubectl) -> None:
    namespace.create(deployment())
    namespace.patch("sdep", "books", {"status": {"kopf": {"progress": {}}, "replicas": 1}}, "--subresource=status")
    assert namespace.get("sdep", "books")["status"] == {"replicas": 1}


def test_the_definition_applies_over_itself_without_change(crd: Cluster) -> None:
    before = crd.kubectl.get("crd", NAME)["metadata"]
    crd.kubectl.run("apply", "--server-side", "-f", str(CRD_FILE))
    after = crd.kubectl.get("crd", NAME)["metadata"]
    assert before["resourceVersion"] == after["resourceVersion"]
