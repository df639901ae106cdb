"""The interface between scheduler and model runner: the work of one step, and its result.

The scheduler makes a ``StepPlan``. The runner executes plans in the order in which they were made and returns a
``StepOutput`` for each. The scheduler may make a plan before the runner has executed the plan ahead of it (two in
flight). It does not know the tokens that the earlier plan samples. So a plan contains the *positions* to compute. The
runner reads the token ids from its own rows, where it wrote the sampled tokens.
"""

from dataclasses import dataclass, field

from octavo_api.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class RowJoin:
    """Assignment of a row to a sequence: a new one, a fork, or one that resumes after preemption.

    ``token_ids`` are all tokens known so far (prompt, then output); the first ``prompt_len`` are the prompt.
    ``block_ids`` is the row's whole block table. ``sampling.seed`` is set. The random number for the token at
    ``position`` is ``Philox(seed, choice, position)``.
    """

    row: int
    token_ids: tuple[int, ...]
    prompt_len: int
    block_ids: tuple[int, ...]
    sampling: SamplingParams
    choice: int


@dataclass(frozen=True, slots=True)
class RowWork:
    """Positions ``start .. start + count - 1`` of a row to compute. Their KV is then in the row's blocks.

    The runner first appends ``new_block_ids`` to the row's block table. If ``choices`` is not empty, it samples the
    logits of the last position once for each choice. A fork point samples several tokens from one row of logits. The
    runner appends the token of the row's own choice to the row. The own choice is missing if it was aborted while
    others are still to fork from the row.

    ``prompt_logprobs`` requests log probabilities of the prompt tokens at positions ``start + 1 .. start + count``, as
    far as they are prompt.
    """

    row: int
    start: int
    count: int
    new_block_ids: tuple[int, ...] = ()
    choices: tuple[int, ...] = ()
    prompt_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy of the KV of all layers from block ``source`` to block ``target`` (copy on write)."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step, in the order in which the runner executes it: leave, copy, join, compute.

    After a plan that raised, the next plan repeats its leaves. A leave of an empty row has no effect. A join of a row
    in use replaces its contents.
    """

    step_id: int
    leaves: tuple[int, ...]
    copies: tuple[BlockCopy, ...]
    joins: tuple[RowJoin, ...]
    work: tuple[RowWork, ...]

    @property
    def num_tokens(self) -> int:
        return sum(item.count for item in self.work)


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log probabilities at one position: of the token there, and of the most likely tokens, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sampled token. ``logprobs`` is set if the row's sampling requests it."""

    row: int
    choice: int
    token_id: int
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Result of a plan: one ``Sampled``, in any order, for each choice of each row's work.

    ``prompt_logprobs`` maps a row to one entry for each requested prompt position.

    ``failed`` maps a row to the reason of a failure of this row alone (its logits were not finite). Such a row has no
    entry in ``sampled``. Its request ends with ``EngineFailure``; the others continue.
    """

    step_id: int
    sampled: tuple[Sampled, ...]
    prompt_logprobs: dict[int, tuple[Logprobs, ...]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
