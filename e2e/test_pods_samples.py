"""The numbered samples serve as they are printed, with what their first lines ask for; the node lowers requests alone.

Not here: 12, whose image is in a registry, and a hub itself: sample 06 finds its model in the claim.
"""

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from octavo_testing import weights
from octavo_testing.certificates import Authority
from octavo_testing.kube.kubectl import Kubectl
from octavo_testing.kube.serving import complete
from octavo_testing.node import environment, pods
from octavo_testing.node.node import HOME, Node, chart_image
from octavo_testing.node.pods import InPods
from octavo_testing.waiting import eventually

pytestmark = [pytest.mark.node, pytest.mark.full, pytest.mark.timeout(600)]
NAMESPACE, RAY = "samples", "ray"
SAMPLES = Path(__file__).parents[1] / "manifests" / "samples"
TOKEN = "hf_thisIsNobodysToken"


@pytest.fixture(scope="module")
def kubectl(installed: Node) -> Iterator[Kubectl]:
    within = installed.cluster.kubectl.within(NAMESPACE)
    yield within
    names = within.names("sdep")
    within.run("delete", "sdep", "--all", "--timeout=100s")
    for name in names:
        pods.wait_until_nothing_is_left(InPods(within, name), 200)


@pytest.fixture
def models(node: Node, kubectl: Kubectl) -> Kubectl:
    """The claim ``models``, with a folder of weights in it, and a hub's cache."""
    folder = HOME / "models"
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        weights.write(partial / "qwen2.5-0.5b-instruct", "Qwen2ForCausalLM")
        weights.write_into_hub_cache(partial, "meta-llama/Llama-3.2-1B-Instruct", "LlamaForCausalLM")
        for path in (partial, *partial.rglob("*")):
            os.chown(path, environment.USER, environment.USER)
        partial.rename(folder)
    node.cluster.kubectl.within("").apply(*environment.claim(NAMESPACE, "models", folder))
    return kubectl


def test_autoscaling(kubectl: Kubectl) -> None:
    _serves(kubectl, "02-autoscaling")


def test_scale_to_zero(kubectl: Kubectl) -> None:
    serving = _applied(kubectl, "03-scale-to-zero")
    assert not serving.pods("engine")
    _answers_and_goes(serving)


def test_pvc_weights(models: Kubectl) -> None:
    _serves(models, "05-pvc-weights", model="qwen2.5")


def test_hugging_face_token(models: Kubectl) -> None:
    """The Secret comes late, and no edit is needed; two replicas share the claim; the token is nowhere to be read."""
    serving = _applied(models, "06-hugging-face-token", ready=False)
    serving.wait("SpecValid", "False", "SecretNotFound")
    models.run("create", "secret", "generic", "hub", f"--from-literal=HF_TOKEN={TOKEN}")
    serving.wait_ready(300)
    assert complete(serving.base, "llama")
    assert len(serving.pods("engine")) == 2
    logs = "".join(serving.log(pod) for pod in serving.pods("engine") | serving.pods("gateway"))
    assert "llama" in logs
    shown = json.dumps(models.list("sdep,raycluster,pod,event,configmap")) + logs + serving.applications()
    assert "hugging-face-token" in shown
    assert TOKEN not in shown
    serving.delete()


def test_priority_scheduling(kubectl: Kubectl) -> None:
    _serves(kubectl, "07-priority-scheduling")


def test_gcs_fault_tolerance(kubectl: Kubectl) -> None:
    kubectl.run("create", "secret", "generic", "redis", "--from-literal=password=open-sesame")
    pods.start_redis(kubectl, "--requirepass open-sesame")
    serving = _applied(kubectl, "08-gcs-fault-tolerance")
    assert complete(serving.base, serving.name)
    cluster = kubectl.names("raycluster")
    serving.delete()
    eventually("Redis is cleaned up, and the RayCluster gone", lambda: not kubectl.names("raycluster") & cluster, 100)
    # They would wait for a head for ten minutes.
    kubectl.run("delete", "pod", f"--selector=serving.octavo.dev/deployment={serving.name}", "--force")


def test_api_keys_and_tls(kubectl: Kubectl, tmp_path: Path) -> None:
    authority = Authority()
    certificate, key = authority.service("api-keys-tls").write(tmp_path, "chat")
    (tmp_path / "api-keys").write_text("open-sesame\n")
    kubectl.run("create", "secret", "generic", "keys", f"--from-file={tmp_path / 'api-keys'}")
    kubectl.run("create", "secret", "tls", "chat-tls", f"--cert={certificate}", f"--key={key}")
    serving = _applied(kubectl, "09-api-keys-tls")
    assert len(serving.pods("gateway")) == 2
    body = {"model": serving.name, "prompt": "Once", "max_tokens": 4}
    url = f"https://{serving.address}:8443/v1/completions"
    with httpx.Client(verify=False, trust_env=False, timeout=60) as client:
        assert client.post(url, json=body).status_code == 401
        assert client.post(url, json=body, headers={"Authorization": "Bearer open-sesame"}).status_code == 200
    serving.delete()


def test_new_cluster_rollout(kubectl: Kubectl) -> None:
    _serves(kubectl, "10-new-cluster-rollout")


def test_placement(kubectl: Kubectl, node: Node) -> None:
    anywhere = node.cluster.kubectl
    (name,) = anywhere.names("node")
    anywhere.run("create", "priorityclass", "serving", "--value=1000")
    try:
        serving = _applied(kubectl, "11-placement", ready=False)
        serving.wait("Progressing", "True", "InsufficientCapacity", timeout_s=150)
        anywhere.run("label", "node", name, "pool=engines", "topology.kubernetes.io/zone=a")
        serving.wait_ready(400)
        assert len(serving.pods("engine")) == 3
        _answers_and_goes(serving)
    finally:
        anywhere.run("delete", "priorityclass", "serving")
        anywhere.run("label", "node", name, "pool-", "topology.kubernetes.io/zone-")


def test_suspended(kubectl: Kubectl) -> None:
    serving = _applied(kubectl, "13-suspended", ready=False)
    serving.wait("Progressing", "False", "Suspended")
    assert not kubectl.list("pod", f"serving.octavo.dev/deployment={serving.name}")
    (resume,) = re.findall(r"kubectl (patch .*)", _text("13-suspended").splitlines()[1])
    kubectl.run(*shlex.split(resume))
    serving.wait_ready(300)
    _answers_and_goes(serving)


def test_external_ray(kubectl: Kubectl, node: Node) -> None:
    """On a RayCluster that a user created with KubeRay: its head takes the replicas."""
    node.prepare(RAY)
    ray = node.cluster.kubectl.within(RAY)
    for namespace in (ray, kubectl):
        namespace.run("create", "secret", "generic", "ray-token", "--from-literal=auth_token=open-sesame")
    ray.apply(_raycluster())
    eventually("Ray is up", lambda: _answers(ray), timeout_s=120, every_s=1)
    serving = _applied(kubectl, "04-external-ray")
    url = str(serving.status["urls"]["http"]).replace("raycluster-head-svc.ray.svc", _address(ray))
    assert complete(url, serving.name)
    assert not kubectl.list("pod", f"serving.octavo.dev/deployment={serving.name}")
    serving.delete()
    ray.run("delete", "raycluster", "raycluster", "--timeout=60s")
    eventually("its pod is gone", lambda: not ray.names("pod"), timeout_s=100, every_s=1)
    node.forget(RAY)


def _text(sample: str) -> str:
    return (SAMPLES / f"{sample}.yaml").read_text()


def _applied(kubectl: Kubectl, sample: str, *, ready: bool = True) -> InPods:
    kubectl.run("apply", "-f", str(SAMPLES / f"{sample}.yaml"))
    serving = InPods(kubectl, yaml.safe_load(_text(sample))["metadata"]["name"])
    if ready:
        print(f"{sample}: Ready after {serving.wait_ready(400):.1f} s")
    return serving


def _answers_and_goes(serving: InPods, model: str = "") -> None:
    assert complete(serving.base, model or serving.name, timeout_s=300)
    serving.delete()


def _serves(kubectl: Kubectl, sample: str, model: str = "") -> None:
    _answers_and_goes(_applied(kubectl, sample), model)


def _raycluster() -> dict[str, Any]:
    token = {"secretKeyRef": {"name": "ray-token", "key": "auth_token"}}
    container = pods.pod("head", "")["spec"]["containers"][0]
    container = {name: value for name, value in container.items() if name not in ("command", "name")} | {
        "name": "ray-head",
        "image": chart_image("serverImage"),
        "env": [{"name": "RAY_AUTH_MODE", "value": "token"}, {"name": "RAY_AUTH_TOKEN", "valueFrom": token}],
        "resources": {"limits": {"cpu": "8", "memory": "8Gi"}},
    }
    spec = {"containers": [container], "securityContext": {"runAsNonRoot": True, "runAsUser": environment.USER}}
    head = {"rayStartParams": {"dashboard-host": "0.0.0.0"}, "template": {"spec": spec}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "raycluster"},
        "spec": {"headGroupSpec": head},
    }


def _address(ray: Kubectl) -> str:
    """Of the head's pod; its Service has none of its own."""
    (pod,) = ray.list("pod")
    return str(pod["status"]["podIP"])


def _answers(ray: Kubectl) -> bool:
    (pod,) = ray.list("pod") or [{}]
    conditions = (pod.get("status") or {}).get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
