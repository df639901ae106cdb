"""The configuration of a model: one frozen ``ModelConfig``, whatever file it was read from."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


class Family(StrEnum):
    """Architectures of ``config.json`` that the engine serves."""

    LLAMA = "LlamaForCausalLM"
    MISTRAL = "MistralForCausalLM"
    QWEN2 = "Qwen2ForCausalLM"


class RopeKind(StrEnum):
    DEFAULT = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding. The kinds that have the fields after ``factor`` read them (names as in transformers).

    ``freq_factors`` divide the inverse frequencies, one for each pair of dimensions: GGUF carries llama3 scaling this
    way.
    """

    theta: float = 10000.0
    kind: RopeKind = RopeKind.DEFAULT
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True
    freq_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only model of the Llama family.

    ``sliding_windows`` has one entry for each layer: the number of tokens back that attention reads (itself included),
    or None. ``max_model_len`` is the longest sequence that the model's positions reach.
    """

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_model_len: int
    rope: RopeConfig
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    sliding_windows: tuple[int | None, ...]
    eos_token_ids: frozenset[int]

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        """Number of weights to keep in memory; tied embeddings count once."""
        hidden, inner = self.hidden_size, self.intermediate_size
        attention = hidden * (self.q_size + 2 * self.kv_size) + self.q_size * hidden
        layer = attention + 3 * hidden * inner + 2 * hidden
        embeddings = (1 if self.tie_word_embeddings else 2) * self.vocab_size * hidden
        return self.num_layers * layer + embeddings + hidden

    def block_bytes(self, block_size: int, item_size: int) -> int:
        """Return the bytes of one block of KV cache: keys and values of ``block_size`` tokens in all layers."""
        return self.num_layers * 2 * self.num_kv_heads * block_size * self.head_dim * item_size
