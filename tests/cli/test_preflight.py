"""Refusals of ``octavo up`` before it starts anything."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo_api.errors import StartupError
from octavo_api.resource.deployment import ServingDeployment
from octavo_cli.preflight import check

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 32,
}


def deployment(ports: tuple[int, int], **spec: Any) -> ServingDeployment:
    endpoint = {"http": {"port": ports[0]}, "grpc": {"port": ports[1]}}
    document = {"model": {"uri": "embedded://smollm2"}, "endpoint": endpoint, **spec}
    return ServingDeployment.read({"metadata": {"name": "a"}, "spec": document})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"engine": {"kvCacheMemoryBytes": "900Gi"}}, r"KV cache of 900\.00 GiB need .* the replica's limit is"),
        ({"engine": {"kvCacheMemoryBytes": 70000}}, r"kv_cache_memory_bytes: got 70000, allowed: at least"),
        ({"resources": {"limits": {"memory": "64Mi"}}}, r"the replica's limit is 0\.06 GiB"),
        ({"engine": {"maxModelLen": 100000}}, r"max_model_len: got 100000, allowed: at most the model's 8192"),
        ({"resources": {"limits": {"cpu": "64"}}}, r"limits\.cpu: got 64 for each"),
    ],
)
def test_what_no_replica_could_start_with_is_refused(
    spec: dict[str, Any], words: str, free_ports: tuple[int, int]
) -> None:
    with pytest.raises(StartupError, match=words):
        check(deployment(free_ports, **spec), None, 2.0)


def test_weights_that_are_not_the_configurations_are_refused(tmp_path: Path, free_ports: tuple[int, int]) -> None:
    import torch
    from safetensors.torch import save_file

    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    save_file({"model.norm.weight": torch.ones(65)}, tmp_path / "model.safetensors")
    with pytest.raises(StartupError, match=r"model\.embed_tokens\.weight: missing.*and \d+ more"):
        check(deployment(free_ports, model={"uri": tmp_path.as_uri()}), None, 2.0)


def test_nothing_heavy_is_loaded_for_it(free_ports: tuple[int, int]) -> None:
    program = (
        "import sys; from octavo_cli.preflight import check\n"
        "from octavo_api.resource.deployment import ServingDeployment\n"
        "check(ServingDeployment.read({'metadata': {'name': 'a'}, 'spec': {'model': {'uri': 'embedded://smollm2'},"
        f" 'endpoint': {{'http': {{'port': {free_ports[0]}}}, 'grpc': {{'port': {free_ports[1]}}}}}}}}}), None, 2.0)\n"
        "assert not {'torch', 'ray', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
