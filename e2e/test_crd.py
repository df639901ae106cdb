"""The resource definition in a real API server: what it takes, what it refuses and in which words."""

from typing import Any

import pytest
import yaml
from octavo_e2e.cluster import Cluster
from octavo_e2e.documents import deployment, merged
from octavo_e2e.kubectl import Kubectl, Refused

EXTERNAL = {"external": {"dashboardURL": "http://ray.example:8265"}}
NAME = "servingdeployments.serving.octavo.dev"


REFUSED = {
    "unknown scheme": ({"model": {"uri": "ftp://a/b"}}, "spec.model.uri", "must start with one of embedded://, hf://"),
    "no model": ({"model": {"uri": None}}, "spec.model.uri", "Required value"),
    "revision of a file": ({"model": {"revision": "main"}}, "spec.model.revision", "revision needs a hf:// model"),
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
        "rollout.strategy NewCluster needs rayCluster.managed",
    ),
    "orphan in a cluster of its own": (
        {"deletionPolicy": "Orphan"},
        "spec.deletionPolicy",
        "deletionPolicy Orphan needs rayCluster.external",
    ),
    "claim in external mode": (
        {"rayCluster": EXTERNAL, "model": {"uri": "pvc://claim/model"}},
        "spec.model.uri",
        "is mounted into pods, so it needs rayCluster.managed",
    ),
    "token in external mode": (
        {"rayCluster": EXTERNAL, "model": {"uri": "hf://a/b", "secretRef": {"name": "token"}}},
        "spec.model.secretRef",
        "is mounted into pods, so it needs rayCluster.managed",
    ),
    "cache in external mode": (
        {"rayCluster": EXTERNAL, "model": {"uri": "hf://a/b", "cache": {"claimName": "cache"}}},
        "spec.model.cache",
        "is mounted into pods, so it needs rayCluster.managed",
    ),
    "certificate in external mode": (
        {"rayCluster": EXTERNAL, "endpoint": {"tlsSecretRef": {"name": "tls"}}},
        "spec.endpoint.tlsSecretRef",
        "is mounted into pods, so it needs rayCluster.managed",
    ),
    "keys in external mode": (
        {"rayCluster": EXTERNAL, "endpoint": {"apiKeySecretRef": {"name": "keys"}}},
        "spec.endpoint.apiKeySecretRef",
        "is mounted into pods, so it needs rayCluster.managed",
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


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case: str, crd: Cluster) -> None:
    change, field, words = REFUSED[case]
    with pytest.raises(Refused) as refused:
        crd.kubectl.run("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(merged_deployment(change)))
    said = str(refused.value)
    assert field in said, said
    assert words in said, said


def merged_deployment(change: dict[str, Any]) -> dict[str, Any]:
    return merged(deployment(), {"spec": change})


TAKEN = {
    "smallest": {},
    "fixed size in words and numbers": {
        "engine": {"kvCacheMemoryBytes": "1.5Gi"},
        "resources": {"limits": {"cpu": "1500m", "memory": 2**31}},
    },
    "scale to zero": {"autoscaling": {"minReplicas": 0, "maxReplicas": 4}},
    "everything pods can mount": {
        "model": {"uri": "hf://a/b", "revision": "v1", "secretRef": {"name": "t"}, "cache": {"claimName": "c"}},
        "endpoint": {"tlsSecretRef": {"name": "tls"}, "apiKeySecretRef": {"name": "keys"}},
    },
    "external": {"rayCluster": EXTERNAL, "deletionPolicy": "Orphan"},
    "KubeRay's own fields": {
        "rayCluster": {
            "managed": {
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                "affinity": {"nodeAffinity": {}},
                "volumes": [{"name": "x", "emptyDir": {}}],
                "volumeMounts": [{"name": "x", "mountPath": "/x"}],
                "env": [{"name": "A", "value": "b"}],
                "gcsFaultTolerance": {"redisAddress": "redis:6379"},
            }
        }
    },
}


@pytest.mark.parametrize("case", TAKEN)
def test_takes(case: str, crd: Cluster) -> None:
    crd.kubectl.run("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(merged_deployment(TAKEN[case])))


def test_a_name_of_forty_characters_is_taken_and_one_of_forty_one_refused(crd: Cluster) -> None:
    crd.kubectl.run("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(deployment("a" * 40)))
    for name in ("a" * 41, "1st", "a.b"):
        with pytest.raises(Refused, match="have at most 40 characters"):
            crd.kubectl.run("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(deployment(name)))


def test_a_misspelled_field_is_refused_by_kubectl(crd: Cluster) -> None:
    with pytest.raises(Refused, match=r'unknown field "spec\.engine\.maxNumSeq"'):
        crd.kubectl.create(deployment(engine={"maxNumSeq": 4}))


@pytest.mark.parametrize("change", [{"rayCluster": {"external": None}}, {"rayCluster": {"managed": {}}}])
def test_the_mode_cannot_be_changed(change: dict[str, Any], namespace: Kubectl) -> None:
    namespace.create(deployment(rayCluster=EXTERNAL))
    with pytest.raises(Refused, match=r"delete and create the resource|exclude each other"):
        namespace.patch("sdep", "books", {"spec": change})


def test_the_address_of_an_external_ray_cannot_be_changed(namespace: Kubectl) -> None:
    namespace.create(deployment(rayCluster=EXTERNAL))
    with pytest.raises(Refused, match="dashboardURL cannot be changed"):
        namespace.patch("sdep", "books", {"spec": {"rayCluster": {"external": {"dashboardURL": "http://other:8265"}}}})


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


def test_the_definition_applies_over_itself_without_change(crd: Cluster, crd_folder: Any) -> None:
    before = crd.kubectl.get("crd", NAME)["metadata"]
    crd.kubectl.run("apply", "--server-side", "-f", str(crd_folder))
    after = crd.kubectl.get("crd", NAME)["metadata"]
    assert before["resourceVersion"] == after["resourceVersion"]
