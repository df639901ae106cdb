"""The draws of a step: tokens to draw, their rows of logits, and their sampling."""

from dataclasses import dataclass

import numpy as np
import torch

from octavo_engine.core.plan import RowWork
from octavo_engine.runner.row_state import RowState
from octavo_kernels import LogitsPenalties, SamplingBatch


@dataclass(frozen=True, slots=True)
class Draws:
    """N draws from R rows of logits: one for each choice of each work item that samples.

    ``rows`` and ``positions`` (of the token that is drawn) are of the R rows of logits. ``index`` maps a draw to its
    row of logits.
    """

    rows: np.ndarray  # int64 [R]
    positions: np.ndarray  # int64 [R]
    index: np.ndarray  # int64 [N]
    choices: np.ndarray  # int32 [N]

    def __len__(self) -> int:
        return len(self.index)

    def part(self, first: int, last: int) -> "Draws":
        """Return the draws from the rows of logits ``first .. last - 1``."""
        inside = (self.index >= first) & (self.index < last)
        return Draws(
            self.rows[first:last], self.positions[first:last], self.index[inside] - first, self.choices[inside]
        )


def draws_of(work: tuple[RowWork, ...]) -> Draws:
    """Return the draws of a plan in the order of its work."""
    sampling = [item for item in work if item.choices]
    fans = np.array([len(item.choices) for item in sampling], np.int64)
    return Draws(
        rows=np.array([item.row for item in sampling], np.int64),
        positions=np.array([item.start + item.count for item in sampling], np.int64),
        index=np.repeat(np.arange(len(sampling)), fans),
        choices=np.array([choice for item in sampling for choice in item.choices], np.int32),
    )


def greedy(rows: RowState, draws: Draws) -> bool:
    """Return True if every row of logits gives exactly one token, its largest."""
    return len(draws.index) == len(draws.rows) and not rows.temperature[draws.rows].any()


def sampling_batch(rows: RowState, draws: Draws) -> SamplingBatch:
    """Gather the sampling state of each draw."""
    owners = draws.rows[draws.index]
    return SamplingBatch(
        rows=torch.from_numpy(draws.index.astype(np.int32)),
        temperature=torch.from_numpy(rows.temperature[owners]),
        top_k=torch.from_numpy(rows.top_k[owners]),
        top_p=torch.from_numpy(rows.top_p[owners]),
        min_p=torch.from_numpy(rows.min_p[owners]),
        seeds=torch.from_numpy(rows.seeds[owners]),
        choices=torch.from_numpy(draws.choices),
        positions=torch.from_numpy(draws.positions[draws.index]),
    )


def penalties(rows: RowState, draws: Draws) -> LogitsPenalties | None:
    """Gather penalties, biases and forbidden stop tokens of the rows of logits that have any.

    Returns None if no row has any.
    """
    early = rows.min_positions[draws.rows] > draws.positions
    (affected,) = np.nonzero(rows.penalized[draws.rows] | early)
    if not affected.size:
        return None
    owners = draws.rows[affected]
    biases = [
        (rows.biases_before_min_tokens if early[line] else rows.biases)[row]
        for line, row in zip(affected, owners, strict=True)
    ]
    bias_start = np.zeros(len(owners) + 1, np.int32)
    np.cumsum([ids.size for ids, _ in biases], out=bias_start[1:])
    return LogitsPenalties(
        rows=torch.from_numpy(affected.astype(np.int32)),
        repetition=torch.from_numpy(rows.repetition[owners]),
        presence=torch.from_numpy(rows.presence[owners]),
        frequency=torch.from_numpy(rows.frequency[owners]),
        token_ids=rows.token_ids_tensor,
        history_rows=torch.from_numpy(owners.astype(np.int32)),
        prompt_lens=torch.from_numpy(rows.prompt_lens[owners]),
        num_tokens=torch.from_numpy(draws.positions[affected].astype(np.int32)),
        bias_start=torch.from_numpy(bias_start),
        bias_ids=torch.from_numpy(np.concatenate([ids for ids, _ in biases])),
        bias_values=torch.from_numpy(np.concatenate([values for _, values in biases])),
    )
