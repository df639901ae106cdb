"""The seam between scheduler and model runner: what one step computes, and what came of it.

The scheduler makes a ``StepPlan``; the runner executes plans in the order in which they were made and gives a
``StepOutput`` for each. A plan may be made before the plan ahead of it has been executed (two in flight): the tokens
that the earlier plan samples are then not known to the scheduler, so a plan says *which* positions to compute and the
runner reads the token ids from its own rows, where it wrote what it sampled.
"""

from dataclasses import dataclass, field

from octavo_api.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class RowJoin:
    """A sequence takes a row: a new one, a fork, or one that comes back after preemption.

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
    """Compute positions ``start .. start + count - 1`` of a row, whose KV is then in the row's blocks.

    ``new_block_ids`` are appended to the row's block table first. Where ``choices`` is not empty, the logits of the
    last position are sampled once for each choice (a fork point samples several from one row of logits); the runner
    appends the token of the row's own choice to the row. The own choice is missing where it was aborted and others are
    still to fork from the row. ``prompt_logprobs`` asks for log probabilities of the prompt
    tokens at positions ``start + 1 .. start + count``, as far as they are prompt.
    """

    row: int
    start: int
    count: int
    new_block_ids: tuple[int, ...] = ()
    choices: tuple[int, ...] = ()
    prompt_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy the KV of all layers from block ``source`` to block ``target`` (copy on write)."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step, in the order in which the runner carries it out: leave, copy, join, compute.

    After a plan that raised, the next one repeats its leaves: to leave an empty row does nothing, to join a row that
    is taken replaces what was there.
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
    """Log probabilities at one position: the token that stands there, and the most likely ones, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sampled token. ``logprobs`` is set where the row's sampling asks for it."""

    row: int
    choice: int
    token_id: int
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a plan brought: one ``Sampled``, in any order, for each choice of each row's work.

    ``prompt_logprobs`` maps a row to one entry for each prompt position it asked for.

    ``failed`` maps a row to what went wrong with it alone (its logits were not finite). Such a row has no entry in
    ``sampled``; its request ends with ``EngineFailure``, the others go on.
    """

    step_id: int
    sampled: tuple[Sampled, ...]
    prompt_logprobs: dict[int, tuple[Logprobs, ...]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
