"""Interface of a backend: operations on flat, unpadded batches of tokens over a paged KV cache.

Shapes use these letters. Of a step: T tokens, S sequences, R rows of logits. Of a model: V vocabulary, D head size, H
query heads, G key/value heads. Activations are fp32 or bf16, and contiguous unless noted otherwise. Sums are fp32.

The KV cache is one tensor ``[blocks, layers, 2, G, block_size, D]``. The operations of a layer receive its view
``kv_cache[:, layer]`` (``[blocks, 2, G, block_size, D]``, strided over blocks only). The layout inside a block belongs
to the backend: other code copies whole blocks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Places of the step's tokens in sequences and in the cache: made once per step, shared by all layers.

    Sequence ``i`` owns the tokens ``query_start_loc[i] .. query_start_loc[i + 1] - 1``. They are the last of its
    ``seq_lens[i]`` positions. ``work`` is the backend's own partition of the step.
    """

    query_start_loc: Tensor  # int32 [S + 1]
    seq_lens: Tensor  # int32 [S], with this step's tokens
    positions: Tensor  # int64 [T]
    slot_mapping: Tensor  # int64 [T], block * block_size + offset
    block_tables: Tensor  # int32 [S, max_blocks]
    work: Any = None


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """One entry for each token to draw: N of them. Several entries may draw from the same row of logits.

    ``temperature == 0`` takes the largest logit. Each filter applies to the tokens that the filter before it keeps.
    First comes ``min_p`` (0 keeps all), then ``top_k`` (0 keeps all; ties with the k-th are kept), then ``top_p`` (1
    keeps all). ``seeds`` holds the bits of an unsigned 64-bit seed.
    """

    rows: Tensor  # int32 [N], row of logits
    temperature: Tensor  # float32 [N]
    top_k: Tensor  # int32 [N]
    top_p: Tensor  # float32 [N]
    min_p: Tensor  # float32 [N]
    seeds: Tensor  # int64 [N]
    choices: Tensor  # int32 [N]
    positions: Tensor  # int64 [N], position of the token that is drawn


@dataclass(frozen=True, slots=True)
class LogitsPenalties:
    """Changes to P rows of logits, for the rows that need any.

    A row's history is ``token_ids[history_rows[i], :num_tokens[i]]``. Its first ``prompt_lens[i]`` tokens are the
    prompt. Each of ``bias_ids[bias_start[i] : bias_start[i + 1]]`` gets the bias at the same index. A bias of -inf
    forbids a token (``min_tokens``).
    """

    rows: Tensor  # int32 [P], row of logits, each at most once
    repetition: Tensor  # float32 [P], 1 for none
    presence: Tensor  # float32 [P], 0 for none
    frequency: Tensor  # float32 [P], 0 for none
    token_ids: Tensor  # int32 [sequences, max_model_len]
    history_rows: Tensor  # int32 [P]
    prompt_lens: Tensor  # int32 [P]
    num_tokens: Tensor  # int32 [P]
    bias_start: Tensor  # int32 [P + 1]
    bias_ids: Tensor  # int32 [bias_start[-1]]
    bias_values: Tensor  # float32 [bias_start[-1]]


@runtime_checkable
class Linear(Protocol):
    """``y = x @ weight.T + bias`` with a weight in the layout that is best for the backend."""

    in_features: int
    out_features: int

    def __call__(self, x: Tensor) -> Tensor:
        """Compute ``[T, in] -> [T, out]``."""
        ...


class Kernels(Protocol):
    """The operations of one backend. Outputs are new tensors, unless a docstring contains *in place*."""

    name: str
    instruction_set: str  # the target that the operations are compiled for, as logs name it

    def warm_up(self, dtype: torch.dtype, head_dim: int, report: Callable[[str], None] | None = None) -> None:
        """Compile the kernels for a model of this dtype and head size.

        ``report`` receives a line for each operation that took long.
        """
        ...

    # linear layers

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None = None, *, out_dtype: torch.dtype | None = None
    ) -> Linear:
        """Pack ``weight [out, in]``; the caller may drop it afterwards.

        ``out_dtype`` defaults to the weight's.
        """
        ...

    def pack_embedding(self, weight: Tensor, *, tied: bool) -> tuple[Callable[[Tensor], Tensor], Linear | None]:
        """Pack ``weight [V, width]`` once for two uses.

        Returns the lookup ``token_ids [T] -> [T, width]``. If ``tied``, also returns the output head
        ``[T, width] -> [T, V]`` in fp32, and both share one copy of the weight.
        """
        ...

    def embedding(self, weight: Tensor, token_ids: Tensor) -> Tensor:
        """Look up rows: ``weight [V, width], token_ids [T] (int32 or int64) -> [T, width]``."""
        ...

    # norms and activations

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return the root-mean-square norm of the last dimension, ``[T, width]``."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add ``x`` to ``residual`` *in place* and return the norm of the sum, ``[T, width]``."""
        ...

    def head_rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> None:
        """Normalise each head *in place*: ``x [T, heads, D]``, with any stride over tokens."""
        ...

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """Compute ``silu(gate) * up``: ``[T, 2 * width] -> [T, width]``, gate first."""
        ...

    def gelu_and_mul(self, gate_up: Tensor) -> Tensor:
        """Compute ``gelu(gate) * up`` in the tanh form: ``[T, 2 * width] -> [T, width]``, gate first."""
        ...

    # attention

    def plan_attention(
        self, query_start_loc: Tensor, seq_lens: Tensor, block_tables: Tensor, *, block_size: int, num_kv_heads: int
    ) -> AttentionMetadata:
        """Derive positions and slots and divide the step's attention among threads.

        Raises ``ValueError`` for a block size that the backend does not have: on CPU it is a multiple of 16.
        """
        ...

    def rotary_and_write(
        self, q: Tensor, k: Tensor, v: Tensor, cos_sin: Tensor, kv_layer: Tensor, meta: AttentionMetadata
    ) -> None:
        """Rotate ``q [T, H, D]`` and ``k [T, G, D]`` *in place* and write ``k``, ``v`` to their slots.

        ``cos_sin [max_position, rotary_dim]`` is fp32, cosines then sines, each ``rotary_dim / 2`` wide. The first half
        of the rotated dimensions pairs with the second (NeoX). Dimensions from ``rotary_dim`` on stay as they are. q, k
        and v may be views into one ``[T, (H + 2 G) * D]``.
        """
        ...

    def attention(
        self, q: Tensor, kv_layer: Tensor, meta: AttentionMetadata, *, scale: float, sliding_window: int = 0
    ) -> Tensor:
        """Compute causal attention of ``q [T, H, D]`` over each sequence's cache: ``[T, H * D]``.

        A position attends to itself and to at most ``sliding_window - 1`` positions before it; 0 is no window.
        """
        ...

    def copy_blocks(self, kv_cache: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, target) of all layers *in place*, in order."""
        ...

    # logits

    def apply_penalties(self, logits: Tensor, penalties: LogitsPenalties) -> None:
        """Change ``logits [R, V]`` fp32 *in place*: bias, then repetition, frequency and presence penalties.

        Repetition counts prompt and output. The other two count the output alone, as in vLLM.
        """
        ...

    def argmax(self, logits: Tensor) -> Tensor:
        """Return the first index of the largest logit of each row: ``[R, V] -> int64 [R]``.

        NaN is never the largest.
        """
        ...

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Draw a token for each entry: ``logits [R, V]`` fp32 ``-> int64 [N]``.

        The draw is Gumbel-max over the tokens that the filters keep. The noise of vocabulary index ``v`` comes from
        word ``v % 4`` of ``Philox4x32-10(counter=(v // 4, choice, position), key=seed)``: no generator has a state.
        """
        ...

    def token_logprobs(self, logits: Tensor, token_ids: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Compute log probabilities under ``logits [R, V]``: of ``token_ids [R]``, and the ``k`` best.

        Returns fp32 ``[R]``, int64 ``[R, k]`` and fp32 ``[R, k]``, best first, equals by lower id.
        """
        ...
