"""The Llama family: one decoder over flat, unpadded batches of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo_engine.models.family import EMBEDDING, FamilySpec, GgufSpec
from octavo_engine.weights.checkpoint import Shape
from octavo_engine.weights.gguf_config import GgufConfig, config_from_gguf
from octavo_engine.weights.hf_config import HfConfig, config_from_hf
from octavo_engine.weights.model_config import ModelConfig
from octavo_engine.weights.reader import WeightReader

if TYPE_CHECKING:
    from torch import Tensor

    from octavo_kernels import AttentionMetadata, Kernels, Linear

ARCHITECTURE = "LlamaForCausalLM"

GGUF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
    "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
}


def _config(hf: HfConfig) -> ModelConfig:
    biased = hf.boolean("attention_bias", False)
    mlp_bias = hf.boolean("mlp_bias", False)
    return config_from_hf(hf, family=ARCHITECTURE, qkv_bias=biased, output_bias=biased, mlp_bias=mlp_bias)


def _config_from_gguf(gguf: GgufConfig) -> ModelConfig:
    return config_from_gguf(gguf, family=ARCHITECTURE, **biases(gguf))


def biases(gguf: GgufConfig) -> dict[str, Any]:
    """Return the biases that the file has tensors for."""
    return {
        "qkv_bias": "blk.0.attn_q.bias" in gguf.tensors,
        "output_bias": "blk.0.attn_output.bias" in gguf.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in gguf.tensors,
    }


def tensors(config: ModelConfig) -> dict[str, Shape]:
    """Return names and shapes of all tensors."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, Shape] = {EMBEDDING: (config.vocab_size, hidden), "model.norm.weight": (hidden,)}
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    projections = {
        "self_attn.q_proj": (config.q_size, hidden, config.qkv_bias),
        "self_attn.k_proj": (config.kv_size, hidden, config.qkv_bias),
        "self_attn.v_proj": (config.kv_size, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, config.q_size, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}."
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
        for name, (rows, columns, biased) in projections.items():
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if biased:
                shapes[f"{prefix}{name}.bias"] = (rows,)
    return shapes


def _restore(name: str, tensor: "Tensor", config: ModelConfig) -> "Tensor":
    if ".q_proj." in name:
        return _interleaved_to_halves(tensor, config.num_heads)
    if ".k_proj." in name:
        return _interleaved_to_halves(tensor, config.num_kv_heads)
    return tensor


def _interleaved_to_halves(tensor: "Tensor", heads: int) -> "Tensor":
    """Undo ``permute`` of llama.cpp's converter: pairs of rows ``(2i, 2i+1)`` become rows ``(i, i + head/2)``."""
    rows = tensor.shape[0]
    pairs = tensor.view(heads, rows // heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape).contiguous()


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """One layer's packed weights; query, key and value are one matrix, gate and up another."""

    input_norm: "Tensor"
    qkv: "Linear"
    output: "Linear"
    post_norm: "Tensor"
    gate_up: "Linear"
    down: "Linear"
    sliding_window: int


class LlamaDecoder:
    """A ``Decoder`` with its weights packed for ``kernels``."""

    def __init__(self, config: ModelConfig, kernels: "Kernels", weights: WeightReader, max_model_len: int) -> None:
        import torch

        from octavo_engine.models.rope import cos_sin_table

        self.config = config
        self._kernels = kernels
        table = weights.tensor(EMBEDDING)
        self.dtype = table.dtype
        self._embed, head = kernels.pack_embedding(table, tied=config.tie_word_embeddings)
        del table
        self._layers = [_layer(index, config, kernels, weights) for index in range(config.num_layers)]
        self._norm = weights.tensor("model.norm.weight")
        if head is None:
            head = kernels.pack_linear(weights.tensor("lm_head.weight"), out_dtype=torch.float32)
        self._head = head
        self._cos_sin = torch.cat(cos_sin_table(config.rope, config.head_dim, max_model_len), dim=-1)
        self._scale = config.head_dim**-0.5

    def forward(
        self, token_ids: "Tensor", kv_layers: "Sequence[Tensor]", meta: "AttentionMetadata", rows: "Tensor | None"
    ) -> "Tensor":
        """Compute as ``Decoder.forward`` describes.

        The last layer computes output and feed-forward for ``rows`` alone: nothing else reads them.
        """
        kernels, config, eps = self._kernels, self.config, self.config.rms_norm_eps
        heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        by_head = (len(token_ids), sum(heads), config.head_dim)
        residual = self._embed(token_ids)
        hidden: Tensor = kernels.rms_norm(residual, self._layers[0].input_norm, eps)
        for index, layer in enumerate(self._layers):
            q, k, v = layer.qkv(hidden).view(by_head).split_with_sizes(heads, dim=1)
            kv_layer = kv_layers[index]
            kernels.rotary_and_write(q, k, v, self._cos_sin, kv_layer, meta)
            last = index + 1 == len(self._layers)
            if last and rows is not None and len(rows) == 0:
                return hidden[:0]
            hidden = kernels.attention(q, kv_layer, meta, scale=self._scale, sliding_window=layer.sliding_window)
            if last and rows is not None:
                hidden, residual = hidden[rows], residual[rows]
            hidden = kernels.add_rms_norm(layer.output(hidden), residual, layer.post_norm, eps)
            hidden = layer.down(kernels.silu_and_mul(layer.gate_up(hidden)))
            next_norm = self._norm if last else self._layers[index + 1].input_norm
            hidden = kernels.add_rms_norm(hidden, residual, next_norm, eps)
        return hidden

    def logits(self, hidden: "Tensor") -> "Tensor":
        logits: Tensor = self._head(hidden)
        return logits


def _layer(index: int, config: ModelConfig, kernels: "Kernels", weights: WeightReader) -> LlamaLayer:
    prefix = f"model.layers.{index}."

    def linear(*names: str) -> "Linear":
        weight = weights.stacked([f"{prefix}{name}.weight" for name in names])
        bias = weights.optional_stacked([f"{prefix}{name}.bias" for name in names])
        return kernels.pack_linear(weight, bias)

    return LlamaLayer(
        input_norm=weights.tensor(f"{prefix}input_layernorm.weight"),
        qkv=linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        output=linear("self_attn.o_proj"),
        post_norm=weights.tensor(f"{prefix}post_attention_layernorm.weight"),
        gate_up=linear("mlp.gate_proj", "mlp.up_proj"),
        down=linear("mlp.down_proj"),
        sliding_window=config.sliding_windows[index] or 0,
    )


LLAMA = FamilySpec(
    architecture=ARCHITECTURE,
    config=_config,
    tensors=tensors,
    decoder=LlamaDecoder,
    gguf=GgufSpec("llama", _config_from_gguf, GGUF_NAMES, _restore),
)
