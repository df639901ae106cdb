"""GGUF files written by the gguf package, read back; and broken ones."""

import contextlib
import struct

import gguf
import numpy as np
import pytest
import torch

from octavo_api.errors import ModelError
from octavo_engine.models.registry import open_gguf, tensors_of
from octavo_engine.weights.checkpoint import check_tensors
from octavo_engine.weights.gguf_file import GgufFile
from octavo_engine.weights.model_config import RopeKind
from octavo_testing.engine.gguf_model import HEADS, HIDDEN, KV_HEADS, VOCABULARY, permuted, write_gguf

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
RAW_TYPES = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_is_dequantised_as_gguf_does(kind, tmp_path):
    path = tmp_path / "model.gguf"
    tensors = write_gguf(path, kind)
    file = GgufFile(path)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert file.tensors.keys() == theirs.keys() == tensors.keys()
    for name, tensor in theirs.items():
        expected = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(tensors[name].shape)
        ours = file.read(name, torch.float32)
        assert np.array_equal(ours.numpy(), expected)
        assert np.abs(ours.numpy() - tensors[name]).max() < 0.1
        assert torch.equal(file.read(name, torch.bfloat16), ours.bfloat16())


@pytest.mark.parametrize("kind", RAW_TYPES)
def test_types_that_gguf_reads_but_does_not_write(kind, tmp_path):
    quantised = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[quantised]
    raw = np.random.default_rng(0).integers(0, 60, (5, 512 // block * size), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
    writer.add_tensor("x", raw, raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ours = GgufFile(tmp_path / "one.gguf").read("x", torch.float32)
    assert ours.shape == (5, 512)
    assert np.array_equal(ours.numpy(), gguf.dequantize(raw, quantised), equal_nan=True)


def test_dequantised_slices_equal_the_whole(tmp_path, monkeypatch):
    write_gguf(tmp_path / "model.gguf", "Q4_1")
    whole = GgufFile(tmp_path / "model.gguf").read("token_embd.weight", torch.float32)
    monkeypatch.setattr("octavo_engine.weights.gguf_file._SLICE_ELEMENTS", 3 * HIDDEN)
    assert torch.equal(GgufFile(tmp_path / "model.gguf").read("token_embd.weight", torch.float32), whole)


def test_llama_names_and_permuted_rows(tmp_path):
    tensors = write_gguf(tmp_path / "model.gguf", "F32", biases=True)
    checkpoint = open_gguf(tmp_path / "model.gguf")
    config = checkpoint.config
    assert (config.family, config.qkv_bias, config.tie_word_embeddings) == ("LlamaForCausalLM", True, False)
    assert (config.rope.theta, config.eos_token_ids, config.max_model_len) == (5000.0, {7, 9}, 128)
    check_tensors(checkpoint, tensors_of(config), frozenset({"none"}))
    for part, heads in (("q", HEADS), ("k", KV_HEADS)):
        for kind in ("weight", "bias"):
            ours = checkpoint.read(f"model.layers.1.self_attn.{part}_proj.{kind}", torch.float32).numpy()
            assert np.array_equal(permuted(ours, heads), tensors[f"blk.1.attn_{part}.{kind}"])
            assert not np.array_equal(ours, tensors[f"blk.1.attn_{part}.{kind}"])
    for ours, theirs in {
        "lm_head.weight": "output.weight",
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
        "model.layers.0.self_attn.o_proj.weight": "blk.0.attn_output.weight",
        "model.layers.0.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
        "model.layers.1.mlp.down_proj.weight": "blk.1.ffn_down.weight",
    }.items():
        assert np.array_equal(checkpoint.read(ours, torch.float32).numpy(), tensors[theirs])


def test_qwen2_rows_are_not_permuted(tmp_path):
    tensors = write_gguf(tmp_path / "model.gguf", "F32", arch="qwen2", biases=True)
    checkpoint = open_gguf(tmp_path / "model.gguf")
    assert checkpoint.config.family == "Qwen2ForCausalLM"
    ours = checkpoint.read("model.layers.0.self_attn.q_proj.weight", torch.float32).numpy()
    assert np.array_equal(ours, tensors["blk.0.attn_q.weight"])


def test_embeddings_are_tied_where_the_head_is_left_out(tmp_path):
    write_gguf(tmp_path / "model.gguf", leave_out=("output.weight",))
    checkpoint = open_gguf(tmp_path / "model.gguf")
    assert checkpoint.config.tie_word_embeddings
    check_tensors(checkpoint, tensors_of(checkpoint.config), frozenset({"none"}))


def test_rope_factors_and_scaling(tmp_path):
    factors = [1.0] * 8 + [8.0] * 8
    write_gguf(tmp_path / "a.gguf", freq_factors=factors)
    assert open_gguf(tmp_path / "a.gguf").config.rope.freq_factors == tuple(factors)
    write_gguf(tmp_path / "b.gguf", changes={"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0})
    config = open_gguf(tmp_path / "b.gguf").config
    assert (config.rope.kind, config.rope.factor, config.max_model_len) == (RopeKind.YARN, 4.0, 512)


@pytest.mark.parametrize(
    ("arch", "changes", "message"),
    [
        ("gemma3", {}, r"general\.architecture: got 'gemma3', allowed: llama, qwen2"),
        ("llama", {"expert_count": 8}, "expert_count: got 8"),
        ("llama", {"rope.dimension_count": 16}, r"rope\.dimension_count: got 16, allowed: the head's size, 32"),
        (
            "llama",
            {"rope.scaling.type": "longrope"},
            r"scaling\.type: got 'longrope', allowed: none, linear, yarn",
        ),
        ("llama", {"embedding_length": 0}, "embedding_length: got 0, allowed: a positive integer"),
    ],
)
def test_models_that_are_not_served_are_named(arch, changes, message, tmp_path):
    path = tmp_path / "model.gguf"
    write_gguf(path, arch=arch, changes=changes)
    with pytest.raises(ModelError, match=message) as caught:
        open_gguf(path)
    assert str(path) in caught.value.message


def test_missing_and_misshapen_tensors_are_named(tmp_path):
    write_gguf(tmp_path / "model.gguf", leave_out=("blk.1.ffn_up.weight",), changes={"vocab_size": VOCABULARY + 1})
    checkpoint = open_gguf(tmp_path / "model.gguf")
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj\.weight: missing") as caught:
        check_tensors(checkpoint, tensors_of(checkpoint.config), frozenset({"none"}))
    assert f"embed_tokens.weight: got shape [{VOCABULARY}, {HIDDEN}], allowed: [97," in str(caught.value)


def test_a_file_cut_anywhere_is_refused_by_name(tmp_path):
    whole = tmp_path / "whole.gguf"
    write_gguf(whole)
    data = whole.read_bytes()
    path = tmp_path / "cut.gguf"
    header = GgufFile(whole).header_bytes
    for length in [0, 3, 4, 20, *range(24, header, 97), header, header + 100, len(data) - 2000]:
        path.write_bytes(data[:length])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            GgufFile(path)


def test_broken_lengths_give_no_other_error_and_no_endless_loop(tmp_path):
    whole = tmp_path / "whole.gguf"
    write_gguf(whole)
    data = bytearray(whole.read_bytes())
    path = tmp_path / "broken.gguf"
    for offset in range(4, 1500, 3):
        broken = bytes(data[:offset]) + struct.pack("<Q", 2**62) + bytes(data[offset + 8 :])
        path.write_bytes(broken)
        with contextlib.suppress(ModelError):
            open_gguf(path)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04" * 100)
    with pytest.raises(ModelError, match="not a GGUF file"):
        GgufFile(path)
    path.write_bytes(b"GGUF" + struct.pack(">I", 3) + bytes(100))
    with pytest.raises(ModelError, match=r"GGUF version: got 50331648, allowed: 2, 3 \(little-endian\)"):
        GgufFile(path)


def test_fingerprint_follows_the_content_and_not_the_place(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    write_gguf(tmp_path / "model.gguf")
    write_gguf(tmp_path / "elsewhere/model.gguf")
    first = open_gguf(tmp_path / "model.gguf").fingerprint()
    assert open_gguf(tmp_path / "elsewhere/model.gguf").fingerprint() == first
    with (tmp_path / "model.gguf").open("r+b") as file:
        file.seek(GgufFile(tmp_path / "elsewhere/model.gguf").header_bytes + 50)
        file.write(b"\xff")
    assert open_gguf(tmp_path / "model.gguf").fingerprint() != first
