"""The RayCluster: what KubeRay and Pod Security ask of it, and what decides about a new one."""

import copy

import pytest
import yaml

from octavo_api.resource.deployment import ServingDeployment, Spec
from octavo_api.schema.fields import walk
from octavo_api.settings import Change
from octavo_operator.model import names
from octavo_operator.model.defaults import Defaults
from octavo_operator.model.spec_hash import spec_hash

FULL = {
    "model": {
        "uri": "pvc://weights/llama",
        "secretRef": {"name": "hub", "key": "token"},
        "cache": {"claimName": "cache"},
    },
    "resources": {"limits": {"cpu": "1500m", "memory": "3Gi"}, "requests": {"cpu": "500m"}},
    "endpoint": {
        "http": {"port": 8080},
        "tlsSecretRef": {"name": "cert"},
        "apiKeySecretRef": {"name": "keys", "key": "all"},
    },
    "rayCluster": {
        "managed": {
            "image": "mine:1",
            "imagePullPolicy": "Never",
            "imagePullSecrets": [{"name": "registry"}],
            "head": {"resources": {"limits": {"cpu": "250m"}}},
            "serviceAccountName": "workers",
            "priorityClassName": "high",
            "runtimeClassName": "nvidia",
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
            "env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}, {"name": "HF_HOME", "value": "/elsewhere"}],
            "volumes": [{"name": "venv", "emptyDir": {}}],
            "volumeMounts": [{"name": "venv", "mountPath": "/venv"}],
            "gcsFaultTolerance": {"redisAddress": "redis:6379"},
        }
    },
}


@pytest.fixture
def full(world):
    w = world(FULL)
    w.step()
    return w


@pytest.fixture
def small(world):
    w = world()
    w.step()
    return w


def templates(w):
    spec = w.cluster["spec"]
    groups = {group["groupName"]: group for group in spec["workerGroupSpecs"]}
    return {"head": spec["headGroupSpec"], "gateway": groups["gateway"], "engine": groups["engine"]}


def pod(w, component):
    return templates(w)[component]["template"]["spec"]


def container(w, component):
    (found,) = pod(w, component)["containers"]
    return found


def variables(w, component):
    listed = container(w, component)["env"]
    assert len({item["name"] for item in listed}) == len(listed), "a list map: each name once"
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in listed}


def test_name_labels_and_owner(small):
    metadata = small.cluster["metadata"]
    assert metadata["name"].startswith("qwen-")
    assert len(metadata["name"]) == len("qwen-") + 8
    assert metadata["labels"][names.DEPLOYMENT_LABEL] == "qwen"
    assert len(metadata["labels"][names.HASH_LABEL]) <= 63
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("ServingDeployment", "u0", True)


def test_the_longest_name_fits_kuberay_limit():
    from octavo_operator.model.observed import Key

    assert len(names.cluster(Key("n", "x" * 40), "0" * 16)) <= 53


@pytest.mark.parametrize("component", ["head", "gateway", "engine"])
@pytest.mark.parametrize("fixture", ["small", "full"])
def test_every_pod_fits_pod_security_restricted(request, component, fixture):
    w = request.getfixturevalue(fixture)
    spec = pod(w, component)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 1000
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for one in (container(w, component), w.cluster["spec"]["autoscalerOptions"]):
        context = one["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["runAsNonRoot"] is True
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
    for volume in spec["volumes"]:
        assert set(volume) - {"name"} <= allowed
    assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}


@pytest.mark.parametrize("component", ["head", "gateway", "engine"])
def test_every_pod_has_shared_memory_grace_period_and_token(small, component):
    spec = pod(small, component)
    shm = next(volume for volume in spec["volumes"] if volume["name"] == "shared-memory")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "256Mi"}
    assert {"name": "shared-memory", "mountPath": "/dev/shm"} in container(small, component)["volumeMounts"]
    drains = component != "head"  # it runs no replica
    assert spec["terminationGracePeriodSeconds"] == (3630 if drains else 30)
    assert spec["enableServiceLinks"] is False
    assert spec.get("shareProcessNamespace", False) is drains
    found = variables(small, component)
    assert found["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == ("3600" if drains else "0")
    assert found["RAY_AUTH_MODE"] == "token"
    assert found["RAY_AUTH_TOKEN"] == {
        "secretKeyRef": {"name": "qwen-ray-token", "key": "auth_token", "optional": True}
    }
    assert found["RAY_USAGE_STATS_ENABLED"] == "0"
    assert found.get("OCTAVO_LOG_STREAM") == (None if component == "head" else "container")
    labels = templates(small)[component]["template"]["metadata"]["labels"]
    assert labels[names.COMPONENT_LABEL] == component
    assert labels[names.DEPLOYMENT_LABEL] == "qwen"


def test_the_head_runs_no_replica_and_the_groups_one_each(small):
    found = templates(small)
    assert found["head"]["rayStartParams"]["num-cpus"] == "0"
    assert found["engine"]["rayStartParams"]["resources"] == "'{\"octavo_engine\": 1}'"
    assert found["gateway"]["rayStartParams"]["resources"] == "'{\"octavo_gateway\": 1}'"
    assert found["engine"]["rayStartParams"]["num-cpus"] == "2"


def test_the_autoscaler_is_the_second_with_the_token(small):
    spec = small.cluster["spec"]
    assert spec["enableInTreeAutoscaling"] is True
    options = spec["autoscalerOptions"]
    assert options["version"] == "v2"
    assert {item["name"] for item in options["env"]} == {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"}


def test_only_the_gateway_replaces_the_readiness_probe(full):
    probe = container(full, "gateway")["readinessProbe"]
    assert probe["exec"]["command"][-1] == "exec 3<>/dev/tcp/127.0.0.1/8080 && exec 4<>/dev/tcp/127.0.0.1/9000"
    for component in ("head", "engine"):
        assert "readinessProbe" not in container(full, component)
    for component in ("head", "engine", "gateway"):
        assert "livenessProbe" not in container(full, component)


def test_resources_of_a_pod(small, full):
    assert container(small, "engine")["resources"]["limits"] == {"cpu": "2", "memory": "4Gi"}
    assert container(small, "gateway")["resources"]["limits"] == {"cpu": "1", "memory": "1Gi"}
    assert container(small, "head")["resources"]["limits"] == {"cpu": "1", "memory": "2Gi"}
    assert container(full, "engine")["resources"] == {
        "limits": {"cpu": "1500m", "memory": "3Gi"},
        "requests": {"cpu": "500m", "memory": "3Gi"},
    }
    assert templates(full)["engine"]["rayStartParams"]["num-cpus"] == "2"


def test_a_request_above_the_default_limit_raises_the_limit(world):
    w = world({"resources": {"requests": {"memory": "9Gi"}}})
    w.step()
    assert container(w, "engine")["resources"]["limits"]["memory"] == "9Gi"


def test_secrets_are_files_of_those_that_need_them_and_never_values(full):
    def files(component):
        volumes = {volume["name"]: volume for volume in pod(full, component)["volumes"]}
        return {
            mount["mountPath"]: volumes[mount["name"]]
            for mount in container(full, component)["volumeMounts"]
            if "secret" in volumes[mount["name"]]
        }

    assert set(files("gateway")) == {"/etc/octavo/tls", "/etc/octavo/api-keys", "/etc/octavo/hugging-face"}
    assert set(files("engine")) == {"/etc/octavo/hugging-face"}
    assert files("head") == {}
    keys = files("gateway")["/etc/octavo/api-keys"]["secret"]
    assert (keys["secretName"], keys["items"]) == ("keys", [{"key": "all", "path": "keys"}])
    assert variables(full, "engine")["HF_TOKEN_PATH"] == "/etc/octavo/hugging-face/token"


def test_claims_and_cache(full, small):
    volumes = {volume["name"]: volume for volume in pod(full, "engine")["volumes"]}
    assert volumes["model"]["persistentVolumeClaim"] == {"claimName": "weights", "readOnly": True}
    assert volumes["cache"]["persistentVolumeClaim"] == {"claimName": "cache"}
    mounts = {mount["name"]: mount for mount in container(full, "gateway")["volumeMounts"]}
    assert mounts["model"]["mountPath"] == "/octavo/claims/weights"
    assert mounts["model"]["readOnly"] is True
    assert mounts["cache"]["mountPath"] == "/octavo/cache"
    assert {"name": "cache", "emptyDir": {}} in pod(small, "engine")["volumes"]
    assert variables(small, "engine")["HF_HOME"] == "/octavo/cache"
    assert variables(small, "engine")["XDG_CACHE_HOME"] == "/octavo/cache", "compiled kernels"


def test_what_the_user_passes_through_arrives_where_it_belongs(full):
    for component in ("head", "gateway", "engine"):
        spec = pod(full, component)
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert spec["priorityClassName"] == "high"
        assert container(full, component)["image"] == "mine:1"
        assert container(full, component)["imagePullPolicy"] == "Never"
        assert variables(full, component)["HTTPS_PROXY"] == "http://proxy"
        assert variables(full, component)["HF_HOME"] == "/elsewhere", "the user's value holds"
        assert {"name": "venv", "mountPath": "/venv"} in container(full, component)["volumeMounts"]
    for name, value in (("runtimeClassName", "nvidia"), ("nodeSelector", {"disk": "fast"})):
        assert pod(full, "engine")[name] == value
        assert name not in pod(full, "gateway")
    assert {"tolerations", "affinity", "topologySpreadConstraints"} <= pod(full, "engine").keys()
    assert full.cluster["spec"]["gcsFaultToleranceOptions"] == {"redisAddress": "redis:6379"}
    assert full.cluster["spec"]["autoscalerOptions"]["volumeMounts"] == [{"name": "venv", "mountPath": "/venv"}]


def test_service_accounts(small, full):
    assert pod(full, "engine")["serviceAccountName"] == "workers"
    assert "serviceAccountName" not in pod(full, "head"), "KubeRay makes one for the autoscaler"
    assert pod(small, "engine")["automountServiceAccountToken"] is False
    assert "automountServiceAccountToken" not in pod(small, "head")


def test_the_user_cannot_turn_authentication_off(world):
    w = world({"rayCluster": {"managed": {"env": [{"name": "RAY_AUTH_MODE", "value": "disabled"}]}}})
    w.step()
    assert variables(w, "head")["RAY_AUTH_MODE"] == "token"


def test_equal_input_gives_equal_yaml(world):
    made = []
    for _ in range(2):
        w = world(copy.deepcopy(FULL))
        w.step()
        made.append(yaml.safe_dump(w.cluster, sort_keys=True))
    assert made[0] == made[1]


# The hash

OTHER = {
    "model.secretRef.name": "other",
    "model.secretRef.key": "other",
    "model.cache.claimName": "other",
    "rayCluster.managed.imagePullPolicy": "Always",
    "rayCluster.managed.affinity": {"podAffinity": {}},
    "rayCluster.managed.gcsFaultTolerance": {"redisAddress": "other"},
    "endpoint.tlsSecretRef.name": "other",
    "endpoint.apiKeySecretRef.name": "other",
    "endpoint.apiKeySecretRef.key": "other",
}


def hash_of(spec):
    return spec_hash(ServingDeployment.read({"metadata": {"name": "qwen"}, "spec": spec}))


def put(spec, path, value):
    spec = copy.deepcopy(spec)
    *sections, name = path.split(".")
    at = spec
    for part in sections:
        at = at.setdefault(part, {})
    at[name] = value
    return spec


def leaves():
    return [f for f in walk(Spec) if f.shape.section is None and "[]" not in f.path]


def another(field):
    if field.spelled in OTHER:
        return OTHER[field.spelled]
    kind = field.shape.kind.value
    if kind == "list":
        return [{"name": "x"}]
    if kind in ("map", "Kubernetes object"):
        return {"x": "y"}
    if kind in ("bytes", "CPUs"):
        return 7 if kind == "CPUs" else "7Gi"
    return {"integer": 77, "string": "other"}[kind]


@pytest.mark.parametrize("path", [f.spelled for f in leaves() if f.change == Change.NEW_CLUSTER])
def test_a_field_that_needs_a_new_cluster_is_in_the_hash(path):
    field = next(f for f in leaves() if f.spelled == path)
    changed = put(FULL, path, another(field))
    assert hash_of(changed) != hash_of(FULL)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("replicas", 9),
        ("engine.blockSize", 32),
        ("engine.maxNumQueuedReqs", 3),
        ("router.policy", "round_robin"),
        ("router.replicas", 3),
        ("autoscaling", {"maxReplicas": 4}),
        ("model.servedName", "x"),
        ("model.uri", "pvc://weights/another-folder"),
        ("rollout.drainSeconds", 1),
        ("rollout.strategy", "NewCluster"),
        ("endpoint.service.type", "NodePort"),
        ("rayCluster.managed.networkPolicy", True),
        ("suspend", True),
    ],
)
def test_a_live_or_rolling_field_is_not_in_the_hash(path, value):
    assert hash_of(put(FULL, path, value)) == hash_of(FULL)


def test_another_claim_of_the_model_needs_a_new_cluster():
    assert hash_of(put(FULL, "model.uri", "pvc://others/llama")) != hash_of(FULL)
    assert hash_of(put(FULL, "model.uri", "hf://a/b")) != hash_of(FULL)


def test_a_default_written_out_is_the_same_as_one_left_out():
    small = {"model": {"uri": "embedded://smollm2"}}
    assert hash_of(small) == hash_of(put(small, "endpoint.http.port", 8000))
    assert hash_of(small) == hash_of(put(small, "rayCluster.managed", {}))
    assert hash_of(small) == hash_of(put(small, "model.uri", "hf://a/b"))


def test_the_hash_of_nothing_is_golden():
    """Another value here would make a new cluster of every deployment in the field."""
    assert hash_of({"model": {"uri": "embedded://smollm2"}}) == "01e7b720ff566d53"


def test_the_operators_defaults_are_not_in_it(world):
    hashes = set()
    for image in ("octavo:1", "octavo:2"):
        w = world()
        w.defaults = Defaults(image=image, ray_version=image)
        w.step()
        hashes.add(w.cluster["metadata"]["labels"][names.HASH_LABEL])
    assert len(hashes) == 1
