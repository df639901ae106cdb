"""The CPU backend: addresses in, kernels of this package, tensors out."""

import os
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from octavo_kernels.cpu import attention as paged
from octavo_kernels.cpu import elementwise, sampling
from octavo_kernels.cpu.arguments import (
    check_block_size,
    check_cache,
    check_contiguous,
    check_heads,
    check_ids,
    check_rows,
    check_weight,
)
from octavo_kernels.cpu.attention_plan import plan_step
from octavo_kernels.cpu.instruction_set import SELECTED
from octavo_kernels.cpu.linear import PanelLinear
from octavo_kernels.cpu.memory import id_tag_of, tag_of
from octavo_kernels.cpu.pool import ThreadPool
from octavo_kernels.cpu.records import CacheLayer, address_of
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
        norm = elementwise.Norm(
            out=out.data_ptr(), out_stride=width * size, x=x.data_ptr(), x_stride=x.stride(0) * size, head_stride=0,
            weight=weight.data_ptr(), rows=rows, heads=1, width=width, eps=eps,
        )  # fmt: skip
        elementwise.rms_norm(self._control, address_of(norm), self.num_threads, tag_of(x.dtype))
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
        address, size = x.data_ptr(), x.element_size()
        row_bytes = x.stride(0) * size
        norm = elementwise.Norm(
            out=address, out_stride=row_bytes, x=address, x_stride=row_bytes, head_stride=x.stride(1) * size,
            weight=weight.data_ptr(), rows=rows, heads=heads, width=width, eps=eps,
        )  # fmt: skip
        elementwise.rms_norm(self._control, address_of(norm), self.num_threads, tag_of(x.dtype))

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
        check_block_size(block_size)
        return plan_step(
            query_start_loc,
            seq_lens,
            block_tables,
            block_size=block_size,
            num_kv_heads=num_kv_heads,
            threads=self.num_threads,
        )

    def rotary_and_write(
        self, q: Tensor, k: Tensor, v: Tensor, cos_sin: Tensor, kv_layer: Tensor, meta: AttentionMetadata
    ) -> None:
        size = q.element_size()
        for name, part in (("q", q), ("k", k), ("v", v)):
            check_heads(name, part, kv_layer)
        check_contiguous("cos_sin", cos_sin)
        if cos_sin.dtype != torch.float32:
            raise ValueError(f"cos_sin: {cos_sin.dtype}, allowed: torch.float32")
        operands = elementwise.Rotary(
            q=q.data_ptr(), q_stride=q.stride(0) * size, heads=q.shape[1], k=k.data_ptr(), k_stride=k.stride(0) * size,
            v=v.data_ptr(), v_stride=v.stride(0) * size, cos_sin=cos_sin.data_ptr(), rotary_dim=cos_sin.shape[1],
        )  # fmt: skip
        cache, places = _cache_layer(kv_layer), meta.work.places
        elementwise.rotary_and_write(
            self._control, address_of(operands), address_of(cache), address_of(places), self.num_threads,
            tag_of(q.dtype),
        )  # fmt: skip

    def attention(
        self, q: Tensor, kv_layer: Tensor, meta: AttentionMetadata, *, scale: float, sliding_window: int = 0
    ) -> Tensor:
        rows, heads, head_dim = q.shape
        check_heads("q", q, kv_layer)
        out = torch.empty((rows, heads * head_dim), dtype=q.dtype)
        parts = torch.empty(paged.part_floats(meta.work.part_tokens, heads // kv_layer.shape[2], head_dim))
        queries = paged.Queries(
            address=q.data_ptr(), stride=q.stride(0) * q.element_size(), heads=heads, out=out.data_ptr(), scale=scale,
            window=sliding_window, parts=parts.data_ptr(),
        )  # fmt: skip
        cache, places = _cache_layer(kv_layer), meta.work.places
        paged.attend(self._control, address_of(queries), address_of(cache), address_of(places), tag_of(q.dtype))
        return out

    def copy_blocks(self, kv_cache: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            kv_cache[target].copy_(kv_cache[source])

    # logits

    def apply_penalties(self, logits: Tensor, penalties: LogitsPenalties) -> None:
        check_ids("bias_ids", penalties.bias_ids, logits.shape[1])
        arrays = (getattr(penalties, name).numpy() for name in sampling.Penalties._fields)
        sampling.apply_penalties(self._control, logits.numpy(), sampling.Penalties._make(arrays))

    def argmax(self, logits: Tensor) -> Tensor:
        out = torch.empty(logits.shape[0], dtype=torch.int64)
        sampling.argmax(self._control, logits.numpy(), out.numpy())
        return out

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        out = torch.empty(len(batch.rows), dtype=torch.int64)
        draws = sampling.Draws._make(getattr(batch, name).numpy() for name in sampling.Draws._fields)
        sampling.sample(self._control, logits.numpy(), draws, out.numpy())
        return out

    def token_logprobs(self, logits: Tensor, token_ids: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        rows = logits.shape[0]
        chosen, values = torch.empty(rows), torch.empty((rows, k))
        ids = torch.empty((rows, k), dtype=torch.int64)
        sampling.token_logprobs(
            self._control, logits.numpy(), token_ids.numpy(), k, chosen.numpy(), ids.numpy(), values.numpy()
        )
        return chosen, ids, values


def _cache_layer(kv_layer: Tensor) -> CacheLayer:
    """Return the record of a layer ``[blocks, 2, G, block_size, D]``; raise ``ValueError`` if a block has gaps."""
    check_cache(kv_layer)
    _, _, heads, block_size, head_dim = kv_layer.shape
    return CacheLayer(
        address=kv_layer.data_ptr(),
        block_stride=kv_layer.stride(0) * kv_layer.element_size(),
        heads=heads,
        block_size=block_size,
        head_dim=head_dim,
    )
