"""The CPU backend: addresses in, kernels of this package, tensors out."""

import os
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from octavo_kernels.cpu import attention as paged
from octavo_kernels.cpu import elementwise, sampling
from octavo_kernels.cpu.arguments import check_cache, check_contiguous, check_heads, check_ids, check_rows, check_weight
from octavo_kernels.cpu.attention_plan import locate, plan_work
from octavo_kernels.cpu.instruction_set import SELECTED
from octavo_kernels.cpu.linear import PanelLinear
from octavo_kernels.cpu.memory import I32, I64, id_tag_of, tag_of
from octavo_kernels.cpu.pool import ThreadPool
from octavo_kernels.cpu.warm_up import warm_up_steps
from octavo_kernels.interface import AttentionMetadata, Linear, LogitsPenalties, SamplingBatch

REPORT_ABOVE_S = 0.5


class CpuKernels:
    """Numba kernels on ``num_threads`` threads (0: one for each processor that this process may use).

    Several threads may call at once. One of them uses the pool, the others do their work alone.
    """

    name = "cpu"

    def __init__(self, *, num_threads: int = 0) -> None:
        self.instruction_set = str(SELECTED)
        self._pool = ThreadPool(num_threads or len(os.sched_getaffinity(0)))
        self.num_threads = self._pool.num_threads
        self._control = self._pool.control

    def warm_up(self, dtype: torch.dtype, head_dim: int, report: Callable[[str], None] | None = None) -> None:
        for name, step in warm_up_steps(self, dtype, head_dim):
            began = time.perf_counter()
            step()
            took = time.perf_counter() - began
            if report is not None and took > REPORT_ABOVE_S:
                report(f"compiled {name} in {took:.1f} s")

    # linear layers

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None = None, *, out_dtype: torch.dtype | None = None
    ) -> Linear:
        return PanelLinear(weight, bias, out_dtype or weight.dtype, self._pool)

    def pack_embedding(self, weight: Tensor, *, tied: bool) -> tuple[Callable[[Tensor], Tensor], Linear | None]:
        if not tied:
            return lambda token_ids: self.embedding(weight, token_ids), None
        head = PanelLinear(weight, None, torch.float32, self._pool)
        return head.look_up, head

    def embedding(self, weight: Tensor, token_ids: Tensor) -> Tensor:
        check_contiguous("weight", weight)
        check_ids("token_ids", token_ids, weight.shape[0])
        out = weight.new_empty(len(token_ids), weight.shape[1])
        elementwise.embedding(
            self._control, out.data_ptr(), weight.data_ptr(), token_ids.data_ptr(), len(token_ids), weight.shape[1],
            self.num_threads, id_tag_of(token_ids), tag_of(weight.dtype),
        )  # fmt: skip
        return out

    # norms and activations

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows, width = x.shape
        check_weight(weight, x)
        check_rows("x", x)
        out = torch.empty((rows, width), dtype=x.dtype)
        size = x.element_size()
        elementwise.rms_norm(
            self._control, out.data_ptr(), width * size, x.data_ptr(), x.stride(0) * size, 0, weight.data_ptr(), rows,
            1, width, eps, self.num_threads, tag_of(x.dtype),
        )  # fmt: skip
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows, width = x.shape
        check_weight(weight, x)
        check_contiguous("x", x)
        check_contiguous("residual", residual)
        if residual.shape != x.shape or residual.dtype != x.dtype:
            raise ValueError(f"residual: {residual.dtype} {tuple(residual.shape)}, allowed: {x.dtype} {tuple(x.shape)}")
        out = torch.empty((rows, width), dtype=x.dtype)
        elementwise.add_rms_norm(
            self._control, out.data_ptr(), x.data_ptr(), residual.data_ptr(), weight.data_ptr(), rows, width, eps,
            self.num_threads, tag_of(x.dtype),
        )  # fmt: skip
        return out

    def head_rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> None:
        rows, heads, width = x.shape
        check_weight(weight, x)
        check_rows("x", x)
        row_bytes, head_bytes = x.stride(0) * x.element_size(), x.stride(1) * x.element_size()
        elementwise.rms_norm(
            self._control, x.data_ptr(), row_bytes, x.data_ptr(), row_bytes, head_bytes, weight.data_ptr(), rows,
            heads, width, eps, self.num_threads, tag_of(x.dtype),
        )  # fmt: skip

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        return self._activate(elementwise.silu_and_mul, gate_up)

    def gelu_and_mul(self, gate_up: Tensor) -> Tensor:
        return self._activate(elementwise.gelu_and_mul, gate_up)

    def _activate(self, kernel: Callable[..., None], gate_up: Tensor) -> Tensor:
        check_contiguous("gate_up", gate_up)
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty((rows, width), dtype=gate_up.dtype)
        kernel(self._control, out.data_ptr(), gate_up.data_ptr(), rows, width, self.num_threads, tag_of(gate_up.dtype))
        return out

    # attention

    def plan_attention(
        self, query_start_loc: Tensor, seq_lens: Tensor, block_tables: Tensor, *, block_size: int, num_kv_heads: int
    ) -> AttentionMetadata:
        for name, table in (
            ("query_start_loc", query_start_loc),
            ("seq_lens", seq_lens),
            ("block_tables", block_tables),
        ):
            if table.dtype != torch.int32:
                raise ValueError(f"{name}: {table.dtype}, allowed: torch.int32")
            check_rows(name, table)
        starts, lens = query_start_loc.numpy(), seq_lens.numpy()
        positions = torch.empty(int(starts[-1]), dtype=torch.int64)
        slots = torch.empty_like(positions)
        locate(starts, lens, block_tables.numpy(), block_size, positions.numpy(), slots.numpy())
        work = plan_work(starts, lens, num_kv_heads)
        return AttentionMetadata(query_start_loc, seq_lens, positions, slots, block_tables, work)

    def rotary_and_write(
        self, q: Tensor, k: Tensor, v: Tensor, cos_sin: Tensor, kv_layer: Tensor, meta: AttentionMetadata
    ) -> None:
        size = q.element_size()
        rows, heads, head_dim = q.shape
        for name, part in (("q", q), ("k", k), ("v", v)):
            check_heads(name, part, kv_layer)
        check_cache(kv_layer)
        check_contiguous("cos_sin", cos_sin)
        if cos_sin.dtype != torch.float32:
            raise ValueError(f"cos_sin: {cos_sin.dtype}, allowed: torch.float32")
        elementwise.rotary_and_write(
            self._control, q.data_ptr(), q.stride(0) * size, k.data_ptr(), k.stride(0) * size, v.data_ptr(),
            v.stride(0) * size, heads, k.shape[1], head_dim, cos_sin.data_ptr(), cos_sin.shape[1],
            meta.positions.data_ptr(), meta.slot_mapping.data_ptr(), kv_layer.data_ptr(), kv_layer.stride(0) * size,
            kv_layer.shape[3], rows, self.num_threads, I64, tag_of(q.dtype),
        )  # fmt: skip

    def attention(
        self, q: Tensor, kv_layer: Tensor, meta: AttentionMetadata, *, scale: float, sliding_window: int = 0
    ) -> Tensor:
        rows, heads, head_dim = q.shape
        _, _, kv_heads, block_size, _ = kv_layer.shape
        check_heads("q", q, kv_layer)
        check_cache(kv_layer)
        size, tag, work = q.element_size(), tag_of(q.dtype), meta.work
        out = torch.empty((rows, heads * head_dim), dtype=q.dtype)
        paged.attend(
            self._control, out.data_ptr(), q.data_ptr(), q.stride(0) * size, heads, kv_layer.data_ptr(),
            kv_layer.stride(0) * size, kv_heads, block_size, head_dim, meta.block_tables.data_ptr(),
            meta.block_tables.stride(0) * 4, meta.positions.data_ptr(), work.items_address, len(work.items),
            scale, sliding_window, I32, I64, tag,
        )  # fmt: skip
        return out

    def copy_blocks(self, kv_cache: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            kv_cache[target].copy_(kv_cache[source])

    # logits

    def apply_penalties(self, logits: Tensor, penalties: LogitsPenalties) -> None:
        p = penalties
        check_ids("bias_ids", p.bias_ids, logits.shape[1])
        arrays = (
            p.rows, p.repetition, p.presence, p.frequency, p.token_ids, p.history_rows, p.prompt_lens, p.num_tokens,
            p.bias_start, p.bias_ids, p.bias_values,
        )  # fmt: skip
        sampling.apply_penalties(self._control, logits.numpy(), *(array.numpy() for array in arrays))

    def argmax(self, logits: Tensor) -> Tensor:
        out = torch.empty(logits.shape[0], dtype=torch.int64)
        sampling.argmax(self._control, logits.numpy(), out.numpy())
        return out

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        b = batch
        out = torch.empty(len(b.rows), dtype=torch.int64)
        arrays = (b.rows, b.temperature, b.top_k, b.top_p, b.min_p, b.seeds, b.choices, b.positions, out)
        sampling.sample(self._control, logits.numpy(), *(array.numpy() for array in arrays))
        return out

    def token_logprobs(self, logits: Tensor, token_ids: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        rows = logits.shape[0]
        chosen, values = torch.empty(rows), torch.empty((rows, k))
        ids = torch.empty((rows, k), dtype=torch.int64)
        sampling.token_logprobs(
            self._control, logits.numpy(), token_ids.numpy(), k, chosen.numpy(), ids.numpy(), values.numpy()
        )
        return chosen, ids, values
