"""The oracle: every operation in plain torch and fp32, written for readability, on any device."""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_kernels.interface import AttentionMetadata, Linear, LogitsPenalties, SamplingBatch
from octavo_kernels.philox import gumbel, random_words


class ReferenceLinear:
    """A linear layer in fp32, rounded once at the end."""

    def __init__(self, weight: Tensor, bias: Tensor | None, out_dtype: torch.dtype) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight, self._bias, self._out_dtype = weight, bias, out_dtype

    def __call__(self, x: Tensor) -> Tensor:
        bias = None if self._bias is None else self._bias.float()
        return F.linear(x.float(), self._weight.float(), bias).to(self._out_dtype)


class ReferenceKernels:
    """Plain torch; a row may differ in its last bits with the batch, as torch's own products do."""

    name = "reference"
    instruction_set = "torch"

    def warm_up(self, dtype: torch.dtype, head_dim: int, report: Callable[[str], None] | None = None) -> None:
        pass

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None = None, *, out_dtype: torch.dtype | None = None
    ) -> Linear:
        return ReferenceLinear(weight, bias, out_dtype or weight.dtype)

    def pack_embedding(self, weight: Tensor, *, tied: bool) -> tuple[Callable[[Tensor], Tensor], Linear | None]:
        head = self.pack_linear(weight, out_dtype=torch.float32) if tied else None
        return lambda token_ids: self.embedding(weight, token_ids), head

    def embedding(self, weight: Tensor, token_ids: Tensor) -> Tensor:
        return weight[token_ids.long()]

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
        return (wide * scale * weight.float()).to(x.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        residual.add_(x)
        return self.rms_norm(residual, weight, eps)

    def head_rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> None:
        x.copy_(self.rms_norm(x, weight, eps))

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (F.silu(gate) * up).to(gate_up.dtype)

    def gelu_and_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (F.gelu(gate, approximate="tanh") * up).to(gate_up.dtype)

    def plan_attention(
        self, query_start_loc: Tensor, seq_lens: Tensor, block_tables: Tensor, *, block_size: int, num_kv_heads: int
    ) -> AttentionMetadata:
        starts, lens = query_start_loc.long(), seq_lens.long()
        query_lens = starts[1:] - starts[:-1]
        sequence = torch.repeat_interleave(torch.arange(len(lens), device=lens.device), query_lens)
        token = torch.arange(int(starts[-1]), device=lens.device)
        positions = token - starts[sequence] + (lens - query_lens)[sequence]
        blocks = block_tables.long()[sequence, positions // block_size]
        slots = blocks * block_size + positions % block_size
        return AttentionMetadata(query_start_loc, seq_lens, positions, slots, block_tables)

    def rotary_and_write(
        self, q: Tensor, k: Tensor, v: Tensor, cos_sin: Tensor, kv_layer: Tensor, meta: AttentionMetadata
    ) -> None:
        cos, sin = cos_sin[meta.positions.long()].unsqueeze(1).float().chunk(2, dim=-1)
        half = cos.shape[-1]
        for x in (q, k):
            first, second = x[..., :half].float(), x[..., half : 2 * half].float()
            x[..., : 2 * half] = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
        block_size = kv_layer.shape[3]
        block, offset = meta.slot_mapping // block_size, meta.slot_mapping % block_size
        kv_layer[block, 0, :, offset] = k
        kv_layer[block, 1, :, offset] = v

    def attention(
        self, q: Tensor, kv_layer: Tensor, meta: AttentionMetadata, *, scale: float, sliding_window: int = 0
    ) -> Tensor:
        num_tokens, heads, head_dim = q.shape
        _, _, kv_heads, block_size, _ = kv_layer.shape
        out = torch.empty(num_tokens, heads * head_dim, dtype=q.dtype, device=q.device)
        starts = meta.query_start_loc.tolist()
        for i, seq_len in enumerate(meta.seq_lens.tolist()):
            table = meta.block_tables[i, : math.ceil(seq_len / block_size)].long()
            # [2, G, blocks * block_size, D], each KV head then repeated for its group of query heads
            kv = kv_layer[table].permute(1, 2, 0, 3, 4).reshape(2, kv_heads, -1, head_dim)[:, :, :seq_len].float()
            keys, values = kv.repeat_interleave(heads // kv_heads, dim=1)
            tokens = slice(starts[i], starts[i + 1])
            scores = torch.einsum("thd,hsd->hts", q[tokens].float(), keys) * scale
            distance = meta.positions[tokens].unsqueeze(1) - torch.arange(seq_len, device=q.device)
            seen = distance >= 0
            if sliding_window:
                seen &= distance < sliding_window
            weights = scores.masked_fill(~seen, -math.inf).softmax(dim=-1)
            out[tokens] = torch.einsum("hts,hsd->thd", weights, values).reshape(-1, heads * head_dim).to(q.dtype)
        return out

    def copy_blocks(self, kv_cache: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            kv_cache[target].copy_(kv_cache[source])

    def apply_penalties(self, logits: Tensor, penalties: LogitsPenalties) -> None:
        p = penalties
        for i, row in enumerate(p.rows.tolist()):
            line = logits[row]
            biased = slice(int(p.bias_start[i]), int(p.bias_start[i + 1]))
            line.index_add_(0, p.bias_ids[biased].long(), p.bias_values[biased])
            history = p.token_ids[int(p.history_rows[i]), : int(p.num_tokens[i])].long()
            seen = torch.bincount(history, minlength=len(line)) > 0
            counts = torch.bincount(history[int(p.prompt_lens[i]) :], minlength=len(line))
            repetition = p.repetition[i]
            line.copy_(torch.where(seen, torch.where(line > 0, line / repetition, line * repetition), line))
            line.sub_(p.frequency[i] * counts).sub_(p.presence[i] * (counts > 0))

    def argmax(self, logits: Tensor) -> Tensor:
        return logits.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf).argmax(dim=-1)

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        drawn = []
        for i, row in enumerate(batch.rows.tolist()):
            line = logits[row].nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
            if batch.temperature[i] == 0 or not line.isfinite().any():
                drawn.append(line.argmax())
                continue
            line = keep_likely(line / batch.temperature[i], batch.min_p[i], int(batch.top_k[i]), batch.top_p[i])
            seed = int(batch.seeds[i]) & 0xFFFFFFFFFFFFFFFF
            words = random_words(seed, int(batch.choices[i]), int(batch.positions[i]), len(line))
            drawn.append((line + gumbel(words).to(line.device)).argmax())
        return torch.stack(drawn) if drawn else torch.empty(0, dtype=torch.int64, device=logits.device)

    def token_logprobs(self, logits: Tensor, token_ids: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        logprobs = logits.float().log_softmax(dim=-1)
        chosen = logprobs.gather(1, token_ids.long().unsqueeze(1)).squeeze(1)
        values, ids = logprobs.sort(dim=-1, descending=True, stable=True)
        return chosen, ids[:, :k].contiguous(), values[:, :k].contiguous()


def keep_likely(line: Tensor, min_p: Tensor, top_k: int, top_p: Tensor) -> Tensor:
    """Set to -inf what ``min_p``, then ``top_k``, then ``top_p`` exclude from a row of scaled logits ``[V]``.

    ``top_p`` keeps the smallest number of most likely tokens (equals by lower id) whose probability reaches it.
    """
    if min_p > 0:
        line = line.masked_fill(line < line.max() + torch.log(min_p), -math.inf)
    if 0 < top_k < len(line):
        line = line.masked_fill(line < line.topk(top_k).values[-1], -math.inf)
    if top_p < 1:
        order = line.sort(descending=True, stable=True).indices
        probabilities = line[order].double().softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        line = line.clone()
        line[order[(before >= top_p) & (before > 0)]] = -math.inf
    return line
