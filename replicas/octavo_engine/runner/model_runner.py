"""Executor of plans: the one place where rows, KV cache, model and sampler meet."""

import math
from collections.abc import Callable

import numpy as np
import torch

from octavo_api.sampling import SamplingParams
from octavo_engine.core.plan import Logprobs, RowJoin, RowWork, StepOutput, StepPlan
from octavo_engine.models.family import Decoder
from octavo_engine.runner.draws import draws_of
from octavo_engine.runner.inputs import gather_inputs
from octavo_engine.runner.row_state import RowState
from octavo_engine.runner.sampler import NOT_FINITE, Sampler
from octavo_kernels import Kernels


class ModelRunner:
    """Runner of one model over one KV cache. Two threads must not call it at once.

    ``kv_cache`` is ``[blocks, layers, 2, kv_heads, block_size, head_dim]`` in the model's dtype. Execute plans in the
    order in which they were made. A plan may have been made before the tokens of the plan ahead of it were known.
    """

    def __init__(
        self,
        model: Decoder,
        kernels: Kernels,
        *,
        num_blocks: int,
        block_size: int,
        num_rows: int,
        max_model_len: int,
        eos_token_ids: frozenset[int],
        max_logits_bytes: int,
    ) -> None:
        config = model.config
        self._model = model
        self._kernels = kernels
        self._block_size = block_size
        shape = (num_blocks, config.num_layers, 2, config.num_kv_heads, block_size, config.head_dim)
        # Not zeroed: that would touch every page at once, and no kernel reads positions before they are written.
        self.kv_cache = torch.empty(shape, dtype=model.dtype)
        self._kv_layers = self.kv_cache.unbind(1)
        self._rows = RowState(num_rows, max_model_len, block_size, config.vocab_size, eos_token_ids)
        self._sampler = Sampler(model, kernels, self._rows, max_logits_bytes)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepOutput:
        """Execute the plan: leave, copy, join, compute; return the samples in the order of the work."""
        self._change_rows(plan)
        if not plan.work:
            return StepOutput(plan.step_id, ())
        inputs = gather_inputs(self._rows, plan.work, self._block_size)
        meta = self._kernels.plan_attention(
            inputs.query_start_loc,
            inputs.seq_lens,
            inputs.block_tables,
            block_size=self._block_size,
            num_kv_heads=self._model.config.num_kv_heads,
        )
        starts = inputs.query_start_loc.numpy()
        sampling = np.array([bool(item.choices) for item in plan.work])
        last_tokens = starts[1:][sampling].astype(np.int64) - 1
        spans = self._prompt_spans(plan.work, starts)
        selected = np.concatenate([last_tokens, *(np.arange(first, end) for _, first, end in spans)])
        hidden = self._model.forward(inputs.token_ids, self._kv_layers, meta, torch.from_numpy(selected))

        failed: dict[int, str] = {}
        sampled = self._sampler.sample(hidden[: len(last_tokens)], draws_of(plan.work), failed)
        prompt_logprobs: dict[int, tuple[Logprobs, ...]] = {}
        offset = len(last_tokens)
        for item, first, end in spans:
            entries = self._sampler.prompt_logprobs(hidden[offset : offset + end - first], item)
            offset += end - first
            prompt_logprobs[item.row] = entries
            if not all(math.isfinite(entry.logprob) for entry in entries):
                failed[item.row] = NOT_FINITE
        good = tuple(entry for entry in sampled if entry.row not in failed)
        return StepOutput(plan.step_id, good, prompt_logprobs, failed)

    def warm_up(self, report: Callable[[str], None] = lambda _: None) -> None:
        """Compile kernels and touch every weight once, through plans over block 0. Call it before the first plan.

        Further calls are cheap.
        """
        config = self._model.config
        self._kernels.warm_up(self._model.dtype, config.head_dim, report)
        count = min(self._block_size, self._rows.token_ids.shape[1] - 1)
        half = max(1, count // 2)
        ways = (
            SamplingParams(temperature=0, logprobs=1, prompt_logprobs=1),
            SamplingParams(top_k=5, top_p=0.9, min_p=0.01, seed=0, repetition_penalty=1.1, min_tokens=1),
        )
        for sampling in ways:
            join = RowJoin(0, (0,) * count, half, (0,), sampling, choice=0)
            prompt = RowWork(0, 0, half, choices=(0,), prompt_logprobs=sampling.prompt_logprobs is not None)
            self.execute(StepPlan(-1, (), (), (join,), (prompt,)))
            decode = (RowWork(0, count - 1, 1, choices=(0,)),)
            self.execute(StepPlan(-1, (), (), (), decode))
        self.execute(StepPlan(-1, (0,), (), (), ()))

    def _change_rows(self, plan: StepPlan) -> None:
        for row in plan.leaves:
            self._rows.leave(row)
        if plan.copies:
            self._kernels.copy_blocks(self.kv_cache, [(copy.source, copy.target) for copy in plan.copies])
        for join in plan.joins:
            self._rows.join(join)
        for item in plan.work:
            if item.new_block_ids:
                self._rows.append_blocks(item)

    def _prompt_spans(self, work: tuple[RowWork, ...], starts: np.ndarray) -> list[tuple[RowWork, int, int]]:
        """Return each item that requests prompt log probabilities, with the step's tokens that precede one."""
        spans = []
        for item, first in zip(work, starts.tolist(), strict=False):
            count = min(item.count, int(self._rows.prompt_lens[item.row]) - 1 - item.start)
            if item.prompt_logprobs and count > 0:
                spans.append((item, first, first + count))
        return spans
