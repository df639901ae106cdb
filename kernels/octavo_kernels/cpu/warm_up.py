"""Calls that make every kernel of a model compile, or load from the cache, before the first request."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from octavo_kernels.interface import Kernels, LogitsPenalties, SamplingBatch

_VOCABULARY = 128


def warm_up_steps(kernels: Kernels, dtype: torch.dtype, head_dim: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the name of each operation and a call of it on small inputs, decode and prefill in one batch."""
    width, heads, kv_heads, block_size = 2 * head_dim, 2, 1, 16
    x, weight = torch.zeros(3, width, dtype=dtype), torch.ones(width, dtype=dtype)
    ids = torch.zeros(3, dtype=torch.int64)
    table = torch.zeros(_VOCABULARY, width, dtype=dtype)
    linear = kernels.pack_linear(torch.zeros(width, width, dtype=dtype))
    look_up, head = kernels.pack_embedding(table, tied=True)
    assert head is not None
    yield "linear", partial(linear, x)
    yield "output head", partial(head, x)
    for kind in (torch.int32, torch.int64):
        yield "embedding", partial(kernels.embedding, table, ids.to(kind))
        yield "tied embedding", partial(look_up, ids.to(kind))
    yield "rms_norm", partial(kernels.rms_norm, x, weight, 1e-5)
    yield "add_rms_norm", partial(kernels.add_rms_norm, x, x.clone(), weight, 1e-5)
    yield "silu_and_mul", partial(kernels.silu_and_mul, torch.zeros(3, 2 * width, dtype=dtype))
    yield "gelu_and_mul", partial(kernels.gelu_and_mul, torch.zeros(3, 2 * width, dtype=dtype))

    def step() -> None:
        cache = torch.zeros(17, 1, 2, kv_heads, block_size, head_dim, dtype=dtype)
        meta = kernels.plan_attention(
            torch.tensor([0, 1, 3], dtype=torch.int32),
            torch.tensor([272, 2], dtype=torch.int32),
            torch.arange(17, dtype=torch.int32).repeat(2, 1),
            block_size=block_size,
            num_kv_heads=kv_heads,
        )
        q = torch.zeros(3, heads, head_dim, dtype=dtype)
        k = torch.zeros(3, kv_heads, head_dim, dtype=dtype)
        kernels.rotary_and_write(q, k, k.clone(), torch.zeros(272, head_dim), cache[:, 0], meta)
        kernels.attention(q, cache[:, 0], meta, scale=1.0)

    yield "attention", step
    logits = torch.zeros(1, _VOCABULARY)
    one, none = torch.ones(1), torch.zeros(1, dtype=torch.int32)
    yield "argmax", partial(kernels.argmax, logits)
    batch = SamplingBatch(none, one, none, one, one * 0, none.long(), none, none.long())
    yield "sample", partial(kernels.sample, logits, batch)
    yield "token_logprobs", partial(kernels.token_logprobs, logits, none.long(), 1)
    history = torch.zeros(1, 4, dtype=torch.int32)
    starts = torch.zeros(2, dtype=torch.int32)
    penalties = LogitsPenalties(
        none, one, one, one, history, none, none, none, starts, torch.empty(0, dtype=torch.int32), torch.empty(0)
    )
    yield "penalties", partial(kernels.apply_penalties, logits, penalties)
