"""The Llama family (Llama, Mistral, Qwen2): one decoder over flat, unpadded batches of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.models.rope import cos_sin_table
from octavo_engine.models.tensors import EMBEDDING
from octavo_engine.weights.model_config import ModelConfig
from octavo_engine.weights.reader import WeightReader
from octavo_kernels import AttentionMetadata, Kernels, Linear


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """One layer's packed weights; query, key and value are one matrix, gate and up another."""

    input_norm: Tensor
    qkv: Linear
    output: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear
    sliding_window: int


class LlamaModel:
    """Weights packed for ``kernels``. Activations have the weights' dtype, logits are fp32."""

    def __init__(self, config: ModelConfig, kernels: Kernels, weights: WeightReader, max_model_len: int) -> None:
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
        self, token_ids: Tensor, kv_layers: Sequence[Tensor], meta: AttentionMetadata, rows: Tensor | None
    ) -> Tensor:
        """Write the KV of ``token_ids [T]`` and return the hidden states of tokens ``rows`` (of all if None).

        ``kv_layers`` has a view ``[blocks, 2, kv_heads, block_size, head_dim]`` of the cache for each layer. The result
        is normed, ready for ``logits``. The last layer computes output and feed-forward for ``rows`` alone: nothing
        else reads them.
        """
        kernels, config, eps = self._kernels, self.config, self.config.rms_norm_eps
        heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        by_head = (len(token_ids), sum(heads), config.head_dim)
        residual = self._embed(token_ids)
        hidden = kernels.rms_norm(residual, self._layers[0].input_norm, eps)
        for index, layer in enumerate(self._layers):
            q, k, v = layer.qkv(hidden).view(by_head).split(heads, dim=1)
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

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute the logits ``[R, hidden_size] -> [R, vocab_size]`` in fp32."""
        return self._head(hidden)


def _layer(index: int, config: ModelConfig, kernels: Kernels, weights: WeightReader) -> LlamaLayer:
    prefix = f"model.layers.{index}."

    def linear(*names: str) -> Linear:
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
