from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo_api.errors import ConfigurationError
from octavo_api.resource.deployment import ServingDeployment
from octavo_api.resource.sections import parse_cpus
from octavo_api.settings import Dtype, RoutingPolicy

FULL = """
apiVersion: serving.octavo.dev/v1alpha1
kind: ServingDeployment
metadata:
  name: chat
  namespace: team-a
  labels: {app: chat}
  creationTimestamp: null
spec:
  model: {uri: "hf://org/name", revision: abc, servedName: my-model}
  engine: {dtype: float32, blockSize: 32, kvCacheMemoryBytes: 1.5Gi, maxNumSeqs: 8}
  replicas: 3
  router: {replicas: 2, policy: least_load, maxBodyBytes: 1M}
  resources: {limits: {cpu: 1500m, memory: 8Gi}}
  rollout: {drainSeconds: 5}
  endpoint: {http: {port: 80}, grpc: {port: 81}}
"""


def document(**changes: Any) -> dict[str, Any]:
    """Return the smallest document, with ``changes`` at paths like ``spec__engine__blockSize``."""
    whole: dict[str, Any] = {"metadata": {"name": "chat"}, "spec": {"model": {"uri": "embedded://smollm2"}}}
    for path, value in changes.items():
        *sections, last = path.split("__")
        at = whole
        for section in sections:
            at = at.setdefault(section, {})
        at[last] = value
    return whole


def complaint(**changes: Any) -> str:
    with pytest.raises(ConfigurationError) as error:
        ServingDeployment.read(document(**changes), where="doc")
    return error.value.message


def test_reads_every_section(tmp_path: Path) -> None:
    path = tmp_path / "chat.yaml"
    path.write_text(FULL)
    read = ServingDeployment.load(path)
    assert read.served_name == "my-model"
    assert read.spec.engine.dtype is Dtype.FLOAT32
    assert read.spec.engine.kv_cache_memory_bytes == 3 * 2**29
    assert read.spec.router.policy is RoutingPolicy.LEAST_LOAD
    assert (read.spec.router.replicas, read.spec.router.max_body_bytes) == (2, 1_000_000)
    assert (read.spec.resources.limits.cpu, read.spec.resources.limits.memory) == (1.5, 2**33)
    assert (read.spec.endpoint.http.port, read.spec.endpoint.grpc.port) == (80, 81)


def test_what_is_written_reads_the_same() -> None:
    read = ServingDeployment.read(yaml.safe_load(FULL))
    again = yaml.safe_load(yaml.safe_dump(read.model_dump(mode="json", by_alias=True)))
    assert ServingDeployment.read(again) == read


def test_the_smallest_document() -> None:
    read = ServingDeployment.read(document())
    assert read.served_name == "chat"
    assert (read.spec.replicas, read.spec.router.replicas) == (1, 1)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"spec__model": {}}, "doc.spec.model.uri: required, not given"),
        ({"spec__model__uri": "s3://x"}, "doc.spec.model.uri: got 's3://x', must start with one of embedded://, hf://"),
        ({"metadata__name": "Chat"}, "doc.metadata.name: got 'Chat', allowed: a match of pattern"),
        (
            {"metadata__name": "a" * 41},
            f"doc.metadata.name: got '{'a' * 41}', allowed: at most 40 characters",
        ),
        ({"kind": "Deployment"}, "doc.kind: got 'Deployment', allowed: 'ServingDeployment'"),
        ({"apiVersion": "v1"}, "doc.apiVersion: got 'v1', allowed: 'serving.octavo.dev/v1alpha1'"),
        ({"spec__replicas": -1}, "doc.spec.replicas: got -1, allowed: at least 0"),
        (
            {"spec__endpoint__http__port": 0},
            "doc.spec.endpoint.http.port: got 0, allowed: at least",
        ),
        (
            {"spec__resources__limits__cpu": "x"},
            "doc.spec.resources.limits.cpu: got 'x', allowed: a number of CPUs or a",
        ),
        ({"spec__resources__limits__memory": 0}, "doc.spec.resources.limits.memory: got 0, allowed: greater"),
        ({"spec__engine": 3}, "doc.spec.engine: got 3, allowed: a valid dictionary"),
    ],
)
def test_errors_name_field_value_and_what_is_allowed(changes, says) -> None:
    assert complaint(**changes).startswith(says)


def test_each_suggestion_comes_from_its_own_section() -> None:
    lines = complaint(
        specs=1,
        spec__modell=1,
        spec__model__revison="x",
        spec__engine__maxNumSeq=1,
        spec__router__polici="x",
        spec__resources__limits__memroy="x",
        spec__rollout__drain="x",
        spec__autoscaling={"maxReplicas": 1, "minReplica": 1},
        spec__rayCluster__managed__tolerance=[],
    ).splitlines()
    assert sorted(lines) == [
        "doc.spec.autoscaling.minReplica: unknown field; did you mean minReplicas?",
        "doc.spec.engine.maxNumSeq: unknown field; did you mean maxNumSeqs?",
        "doc.spec.model.revison: unknown field; did you mean revision?",
        "doc.spec.modell: unknown field; did you mean model?",
        "doc.spec.rayCluster.managed.tolerance: unknown field; did you mean tolerations?",
        "doc.spec.resources.limits.memroy: unknown field; did you mean memory?",
        "doc.spec.rollout.drain: unknown field, allowed: drainSeconds, maxSurgePercent, "
        "progressDeadlineSeconds, strategy",
        "doc.spec.router.polici: unknown field; did you mean policy?",
        "doc.specs: unknown field; did you mean spec?",
    ]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "got NoneType, allowed: one ServingDeployment"),
        (b"[1]", "got list, allowed: one ServingDeployment"),
        (b"a: [", "expected"),
        (b"a: 1\n---\nb: 2", "expected a single document"),
        (b"\xff\xfe\xff", "can't decode"),
        (b"!!python/object/apply:os.system ['true']", "could not determine a constructor"),
    ],
)
def test_files_that_hold_something_else(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError) as error:
        ServingDeployment.load(path)
    assert error.value.message.startswith(f"{path}: ")
    assert says in error.value.message


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file"):
        ServingDeployment.load(tmp_path / "none.yaml")
    with pytest.raises(ConfigurationError, match="Is a directory"):
        ServingDeployment.load(tmp_path)


@pytest.mark.parametrize(("text", "cpus"), [("2", 2.0), ("1500m", 1.5), ("0.5", 0.5), (3, 3), (None, None)])
def test_cpu_quantities(text, cpus) -> None:
    assert parse_cpus(text) == cpus


@pytest.mark.parametrize("text", ["", " 1", "1 ", "1.", ".5", "-1", "1e3", "0.0001", "1u", "0.5m", "٣", 0.5])
def test_what_is_no_cpu_quantity_is_refused(text) -> None:
    assert complaint(spec__resources__limits__cpu=text).startswith("doc.spec.resources.limits.cpu: got ")


def test_a_null_is_as_if_it_were_not_written() -> None:
    nulls = document(
        spec__replicas=None, spec__engine={"blockSize": None}, spec__rollout=None, spec__router={"policy": None}
    )
    assert ServingDeployment.read(nulls) == ServingDeployment.read(document())
    assert complaint(spec__model__uri=None) == "doc.spec.model.uri: required, not given"


def test_reads_what_kubectl_prints() -> None:
    printed = document() | {"status": {"observedGeneration": 3}}
    printed["metadata"] |= {"uid": "x", "resourceVersion": "5", "managedFields": []}
    assert ServingDeployment.read(printed) == ServingDeployment.read(document())


def test_the_two_listeners_need_two_ports() -> None:
    with pytest.raises(ConfigurationError, match=r"spec\.endpoint: http\.port and grpc\.port must differ"):
        ServingDeployment.read(document(spec__endpoint__http={"port": 9000}))
