"""The configuration of a model: one frozen ``ModelConfig``, whatever file it was read from."""

from dataclasses import dataclass
from enum import StrEnum


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
    """A decoder-only model. ``family`` is the architecture, by the name in ``config.json``.

    A family that needs more fields extends this class in its own file.

    ``sliding_windows`` has one entry for each layer: the number of tokens back that attention reads (itself included),
    or None. ``max_model_len`` is the longest sequence that the model's positions reach.
    """

    family: str
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
    sliding_windows: tuple[int | None, ...]
    eos_token_ids: frozenset[int]
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    def block_bytes(self, block_size: int, item_size: int) -> int:
        """Return the bytes of one block of KV cache: keys and values of ``block_size`` tokens in all layers."""
        return self.num_layers * 2 * self.num_kv_heads * block_size * self.head_dim * item_size


def max_model_len(positions: int, rope: RopeConfig) -> int:
    """Return the longest sequence under ``rope``: linear and yarn scaling stretch the positions (as in vLLM)."""
    if rope.kind is RopeKind.LINEAR:
        return int(positions * rope.factor)
    if rope.kind is RopeKind.YARN:
        return max(positions, int(rope.original_max_position_embeddings * rope.factor))
    return positions
