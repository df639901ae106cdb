"""Conversion of a plan's work into the flat tensors of one forward pass, without a loop over tokens."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo_engine.core.plan import RowWork
from octavo_engine.runner.row_state import RowState


@dataclass(frozen=True, slots=True)
class StepInputs:
    """S work items of T tokens together; see ``AttentionMetadata`` for the meaning of the tensors."""

    token_ids: Tensor  # int32 [T]
    query_start_loc: Tensor  # int32 [S + 1]
    seq_lens: Tensor  # int32 [S]
    block_tables: Tensor  # int32 [S, most blocks of any row]


def gather_inputs(rows: RowState, work: tuple[RowWork, ...], block_size: int) -> StepInputs:
    """Read token ids and block tables of ``work`` (not empty) from the rows."""
    row_ids = np.array([item.row for item in work], np.int64)
    starts = np.array([item.start for item in work], np.int64)
    counts = np.array([item.count for item in work], np.int64)
    query_start_loc = np.zeros(len(work) + 1, np.int32)
    np.cumsum(counts, out=query_start_loc[1:])
    positions = np.arange(query_start_loc[-1]) + np.repeat(starts - query_start_loc[:-1], counts)
    token_ids = rows.token_ids[np.repeat(row_ids, counts), positions]
    seq_lens = (starts + counts).astype(np.int32)
    most_blocks = -(-int(seq_lens.max()) // block_size)
    return StepInputs(
        token_ids=torch.from_numpy(token_ids),
        query_start_loc=torch.from_numpy(query_start_loc),
        seq_lens=torch.from_numpy(seq_lens),
        block_tables=torch.from_numpy(rows.block_tables[row_ids, :most_blocks]),
    )
