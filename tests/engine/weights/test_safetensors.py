"""Folders as transformers writes them, and folders that are wrong."""

import json
from collections.abc import Callable

import pytest
import torch
from safetensors.torch import save_file

from octavo_api.errors import ModelError
from octavo_engine.models.registry import load_model, open_folder, read_config, tensors_of
from octavo_engine.weights.hf_config import HfConfig
from octavo_kernels.reference import ReferenceKernels

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


@pytest.fixture
def tensors(folder) -> dict[str, torch.Tensor]:
    shapes = tensors_of(read_config(HfConfig.read(folder)))
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def load(folder, dtype=torch.float32, report: Callable[[str], None] = lambda _: None):
    return load_model(open_folder(folder), ReferenceKernels(), dtype, 64, report)


def shard(folder, tensors):
    names = sorted(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    index = {"weight_map": {name: file for file, part in halves.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_one_file_and_shards_hold_the_same_model(folder, tensors):
    shard(folder, tensors)
    sharded = open_folder(folder)
    (folder / "model.safetensors.index.json").unlink()
    save_file(tensors, folder / "model.safetensors")
    single = open_folder(folder)
    assert single.shapes == sharded.shapes
    for name, tensor in tensors.items():
        assert torch.equal(single.read(name, torch.float32), tensor)
        assert torch.equal(sharded.read(name, torch.bfloat16), tensor.bfloat16())


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64])
def test_every_float_type_is_read(stored, folder, tensors):
    save_file({name: tensor.to(stored) for name, tensor in tensors.items()}, folder / "model.safetensors")
    read = open_folder(folder).read("model.norm.weight", torch.float32)
    assert torch.equal(read, tensors["model.norm.weight"].to(stored).float())


def test_progress_names_each_layer_once(folder, tensors):
    save_file(tensors, folder / "model.safetensors")
    heard: list[str] = []
    load(folder, report=heard.append)
    assert heard == ["reading weights 1/2", "reading weights 2/2"]


def test_missing_unexpected_and_misshapen_tensors_are_named(folder, tensors):
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(8)
    tensors["model.norm.weight"] = torch.ones(31)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError) as caught:
        load(folder)
    message = caught.value.message
    assert str(folder) in message
    assert "model.layers.1.mlp.up_proj.weight: missing" in message
    assert "model.layers.0.self_attn.q_norm.weight: not a tensor of LlamaForCausalLM" in message
    assert "model.norm.weight: got shape [31], allowed: [32]" in message


def test_rotary_buffers_and_a_copy_of_tied_embeddings_are_ignored(folder, tensors):
    (folder / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": True}))
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, folder / "model.safetensors")
    load(folder)


def test_weights_that_are_not_finite_are_refused(folder, tensors):
    tensors["model.layers.0.mlp.up_proj.weight"][3, 4] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"mlp\.up_proj\.weight: holds NaN or infinite values"):
        load(folder)


def test_integer_weights_are_refused(folder, tensors):
    tensors["model.norm.weight"] = torch.ones(32, dtype=torch.int8)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.norm\.weight: got I8, allowed: F64, F32, F16, BF16"):
        load(folder)


@pytest.mark.parametrize("length", [0, 4, 100, -5])
def test_truncated_files_are_named(length, folder, tensors):
    path = folder / "model.safetensors"
    save_file(tensors, path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ModelError, match=r"model\.safetensors: truncated or broken"):
        load(folder)


def test_a_folder_without_weights_is_an_error(folder):
    with pytest.raises(ModelError, match=r"holds no \.safetensors file"):
        load(folder)


def test_an_index_that_names_missing_files_is_an_error(folder, tensors):
    shard(folder, tensors)
    (folder / "b.safetensors").unlink()
    with pytest.raises(ModelError, match=r"index\.json: missing files: b\.safetensors"):
        load(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": {}}'])
def test_a_broken_index_is_named(text, folder, tensors):
    shard(folder, tensors)
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json"):
        load(folder)


def test_fingerprints_of_fine_tunes_differ(folder, tensors):
    save_file(tensors, folder / "model.safetensors")
    first = open_folder(folder).fingerprint()
    assert open_folder(folder).fingerprint() == first
    save_file({name: tensor + 0.01 for name, tensor in tensors.items()}, folder / "model.safetensors")
    assert open_folder(folder).fingerprint() != first
