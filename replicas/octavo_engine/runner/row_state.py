"""State of each sequence in the runner: one fixed row while it runs, in arrays made once."""

import math
from collections.abc import Mapping

import numpy as np
import torch

from octavo_api.sampling import SamplingParams
from octavo_engine.core.plan import RowJoin, RowWork


class RowState:
    """Token buffers, block tables and sampling state of ``num_rows`` rows.

    A step gathers its inputs from these arrays by row number. A row that leaves is only forgotten, never moved. Token
    ids of requests, stop tokens and biases among them, lie within the vocabulary: the service has checked them.
    """

    def __init__(
        self, num_rows: int, max_model_len: int, block_size: int, vocab_size: int, eos: frozenset[int]
    ) -> None:
        self._eos = sorted(token for token in eos if token < vocab_size)
        # One place more than the longest sequence: a step in flight may sample for a request that has just ended.
        self.token_ids = np.zeros((num_rows, max_model_len + 1), np.int32)
        self.block_tables = np.zeros((num_rows, -(-max_model_len // block_size)), np.int32)
        self.num_blocks = np.zeros(num_rows, np.int32)
        self.prompt_lens = np.zeros(num_rows, np.int32)
        self.choices = np.zeros(num_rows, np.int32)
        self.temperature = np.zeros(num_rows, np.float32)
        self.top_k = np.zeros(num_rows, np.int32)
        self.top_p = np.ones(num_rows, np.float32)
        self.min_p = np.zeros(num_rows, np.float32)
        self.seeds = np.zeros(num_rows, np.int64)
        self.repetition = np.ones(num_rows, np.float32)
        self.presence = np.zeros(num_rows, np.float32)
        self.frequency = np.zeros(num_rows, np.float32)
        self.logprobs = np.full(num_rows, -1, np.int32)
        self.prompt_logprobs = np.full(num_rows, -1, np.int32)
        self.penalized = np.zeros(num_rows, np.bool_)
        # Before this position ``biases_before_min_tokens`` apply, which forbid the row's stop tokens. From this
        # position on ``biases`` apply.
        self.min_positions = np.zeros(num_rows, np.int32)
        self.biases = [_as_arrays({})] * num_rows
        self.biases_before_min_tokens = list(self.biases)
        self.token_ids_tensor = torch.from_numpy(self.token_ids)

    def join(self, join: RowJoin) -> None:
        row, sampling = join.row, join.sampling
        self.token_ids[row, : len(join.token_ids)] = join.token_ids
        self.block_tables[row, : len(join.block_ids)] = join.block_ids
        self.num_blocks[row] = len(join.block_ids)
        self.prompt_lens[row] = join.prompt_len
        self.choices[row] = join.choice
        self._set_sampling(row, join.prompt_len, sampling)

    def leave(self, row: int) -> None:
        self.num_blocks[row] = 0

    def append_blocks(self, work: RowWork) -> None:
        start = self.num_blocks[work.row]
        self.block_tables[work.row, start : start + len(work.new_block_ids)] = work.new_block_ids
        self.num_blocks[work.row] += len(work.new_block_ids)

    def _set_sampling(self, row: int, prompt_len: int, sampling: SamplingParams) -> None:
        self.temperature[row] = sampling.temperature
        self.top_k[row] = sampling.top_k
        self.top_p[row] = sampling.top_p
        self.min_p[row] = sampling.min_p
        seed = sampling.seed or 0
        self.seeds[row] = seed - 2**64 if seed >= 2**63 else seed
        self.repetition[row] = sampling.repetition_penalty
        self.presence[row] = sampling.presence_penalty
        self.frequency[row] = sampling.frequency_penalty
        self.logprobs[row] = -1 if sampling.logprobs is None else sampling.logprobs
        self.prompt_logprobs[row] = -1 if sampling.prompt_logprobs is None else sampling.prompt_logprobs
        self.min_positions[row] = prompt_len + sampling.min_tokens if sampling.min_tokens else 0
        self.penalized[row] = (
            sampling.repetition_penalty != 1
            or sampling.presence_penalty != 0
            or sampling.frequency_penalty != 0
            or len(sampling.logit_bias) > 0
        )
        self.biases[row] = self.biases_before_min_tokens[row] = _as_arrays(sampling.logit_bias)
        if sampling.min_tokens:
            forbidden = dict.fromkeys((*self._eos, *sampling.stop_token_ids), -math.inf)
            self.biases_before_min_tokens[row] = _as_arrays({**sampling.logit_bias, **forbidden})


def _as_arrays(bias: Mapping[int, float]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(list(bias), np.int32), np.array(list(bias.values()), np.float32)
