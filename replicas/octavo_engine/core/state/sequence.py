"""A request in progress, and the sequences of its choices."""

from collections import abc
from dataclasses import dataclass, field

from octavo_api.blocks import BlockHash
from octavo_api.sampling import SamplingParams
from octavo_engine.core.request import Timing
from octavo_engine.core.state.block import Block
from octavo_engine.core.state.stopping import StopRule

OrderKey = tuple[float, int, int]
"""Rank, arrival, choice. The key is unique, smaller goes first, and it never changes in the life of a sequence."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice in progress: ``tokens``, and how many of them have their KV computed.

    ::

        tokens      prompt ............... | output ......... |
        num_tokens  ..................................... + those that plans in flight will sample
        computed    blocks in the table, written or about to be by plans in flight |

    ``num_computed_tokens`` changes when a step is planned, ``tokens`` when it is committed. A running sequence has a
    row. A waiting sequence has neither row nor blocks. ``epoch`` changes whenever the sequence releases its blocks:
    work that was planned under another epoch is stale.
    """

    request: "Request" = field(repr=False)
    choice: int
    key: OrderKey
    tokens: list[int]
    prompt_len: int
    max_len: int
    hashes: list[BlockHash]
    choices: tuple[int, ...]
    """Choices to sample at its last position: its own, or none after that choice has ended."""
    pending_forks: tuple[int, ...] = ()
    """Choices that will fork from it when the prompt is computed."""
    num_tokens: int = 0
    num_computed_tokens: int = 0
    num_discarded_tokens: int = 0
    """Number of tokens whose KV was computed once and released, and is recomputed."""
    num_published: int = 0
    """Number of leading blocks that are named in the prefix cache."""
    cache_generation: int = -1
    blocks: list[Block] = field(default_factory=list)
    writable_until: int = 0
    """First position that it cannot write without one more block (or a copy of a shared one)."""
    row: int | None = None
    joined: bool = False
    epoch: int = 0
    last_step: int = -1

    def __post_init__(self) -> None:
        self.num_tokens = len(self.tokens)

    def fork(self, choice: int) -> "Sequence":
        """Return a sequence for another choice, as long as the prompt."""
        return Sequence(
            request=self.request,
            choice=choice,
            key=(self.key[0], self.key[1], choice),
            tokens=self.tokens[: self.prompt_len],
            prompt_len=self.prompt_len,
            max_len=self.max_len,
            hashes=list(self.hashes),
            choices=(choice,),
        )


@dataclass(slots=True, eq=False)
class Request:
    """State that all choices of a request share. ``leader`` computes the prompt and is choice 0's sequence."""

    id: abc.Hashable
    sampling: SamplingParams
    stop: StopRule
    arrival: int
    arrived_at: float
    deadline: float | None
    root: BlockHash
    leader: Sequence = field(init=False, repr=False)
    sequences: dict[int, Sequence] = field(default_factory=dict)
    """Sequences by choice; a choice that is neither here nor pending_forks has ended."""
    unreported_cached_tokens: int | None = 0
    """Number of cached tokens to report; None after an output has reported it."""
    next_prompt_logprob: int = 1
    """First prompt position that owes log probabilities; the prompt's length if none does."""
    admitted_at: float | None = None
    first_token_at: float | None = None
    num_preemptions: int = 0

    def release_leader(self) -> None:
        """Forget the leader, which refers to the request. A cycle would keep both until a collection."""
        del self.leader

    @property
    def live_choices(self) -> tuple[int, ...]:
        return (*self.sequences, *self.leader.pending_forks)

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.next_prompt_logprob < self.leader.prompt_len

    def timing(self, now: float) -> Timing:
        admitted = now if self.admitted_at is None else self.admitted_at
        first = now if self.first_token_at is None else self.first_token_at
        return Timing(admitted - self.arrived_at, first - admitted, now - first, self.num_preemptions)
