"""Sampling: from hidden states to sampled tokens and their log probabilities."""

import numpy as np
import torch
from torch import Tensor

from octavo_engine.core.plan import Logprobs, RowWork, Sampled
from octavo_engine.models.family import Decoder
from octavo_engine.runner.draws import Draws, greedy, penalties, sampling_batch
from octavo_engine.runner.row_state import RowState
from octavo_kernels import Kernels

NOT_FINITE = "the model's logits are not finite"


class Sampler:
    """Drawer of tokens for rows. It writes each row's own token into the row's buffer.

    Logits are fp32. More rows than fit ``max_logits_bytes`` go through the output head in slices.
    """

    def __init__(self, model: Decoder, kernels: Kernels, rows: RowState, max_logits_bytes: int) -> None:
        self._model = model
        self._kernels = kernels
        self._rows = rows
        self._slice = max(1, max_logits_bytes // (4 * model.config.vocab_size))

    def sample(self, hidden: Tensor, draws: Draws, failed: dict[int, str]) -> list[Sampled]:
        """Draw from ``hidden [R, hidden_size]``; rows without finite logits also go to ``failed``."""
        sampled: list[Sampled] = []
        for first in range(0, len(draws.rows), self._slice):
            last = min(first + self._slice, len(draws.rows))
            sampled += self._sample_slice(self._model.logits(hidden[first:last]), draws.part(first, last), failed)
        return sampled

    def prompt_logprobs(self, hidden: Tensor, work: RowWork) -> tuple[Logprobs, ...]:
        """Return the log probabilities of the prompt tokens that follow ``hidden [n, hidden_size]``, in order."""
        rows, first = self._rows, work.start + 1
        targets = torch.from_numpy(rows.token_ids[work.row, first : first + len(hidden)].astype(np.int64))
        top = int(rows.prompt_logprobs[work.row])
        found: list[Logprobs] = []
        for start in range(0, len(hidden), self._slice):
            part = slice(start, start + self._slice)
            logits = self._model.logits(hidden[part])
            found += self._logprobs(logits, targets[part], np.full(len(logits), max(top, 0)))
        return tuple(found)

    def _sample_slice(self, logits: Tensor, draws: Draws, failed: dict[int, str]) -> list[Sampled]:
        rows, kernels = self._rows, self._kernels
        owners = draws.rows[draws.index]
        tops = rows.logprobs[owners]
        (asking,) = np.nonzero(tops >= 0)
        # Log probabilities are the model's own: before penalties, biases and temperature (vLLM's raw_logprobs).
        raw = logits[torch.from_numpy(draws.index[asking])] if asking.size else None
        if (changes := penalties(rows, draws)) is not None:
            kernels.apply_penalties(logits, changes)
        tokens = kernels.argmax(logits) if greedy(rows, draws) else kernels.sample(logits, sampling_batch(rows, draws))
        token_ids = tokens.numpy()
        finite = np.isfinite(logits.numpy()[draws.index, token_ids])
        own = draws.choices == rows.choices[owners]
        rows.token_ids[owners[own], draws.positions[draws.index[own]]] = token_ids[own]

        entries: list[Logprobs | None] = [None] * len(draws)
        if raw is not None:
            for draw, entry in zip(asking, self._logprobs(raw, tokens[asking], tops[asking]), strict=True):
                entries[draw] = entry
        failed.update(dict.fromkeys(owners[~finite].tolist(), NOT_FINITE))
        return list(map(Sampled, owners.tolist(), draws.choices.tolist(), token_ids.tolist(), entries))

    def _logprobs(self, logits: Tensor, token_ids: Tensor, tops: np.ndarray) -> list[Logprobs]:
        chosen, ids, values = self._kernels.token_logprobs(logits, token_ids, int(tops.max()))
        columns = zip(token_ids.tolist(), chosen.tolist(), ids.tolist(), values.tolist(), tops.tolist(), strict=True)
        return [
            Logprobs(token, logprob, tuple(zip(best[:top], best_values[:top], strict=True)))
            for token, logprob, best, best_values, top in columns
        ]
