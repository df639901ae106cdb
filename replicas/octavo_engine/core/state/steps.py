"""Plans that were made and are not committed yet."""

from collections import deque
from collections.abc import Iterator

from octavo_engine.core.plan import BlockCopy, RowJoin, RowWork, StepPlan
from octavo_engine.core.state.block import Block
from octavo_engine.core.state.sequence import Sequence


class ScheduledStep:
    """A plan in the making, then in flight: its parts, their sequences, and the blocks to release after it."""

    __slots__ = (
        "budget",
        "by_row",
        "copies",
        "id",
        "joins",
        "leaves",
        "num_preempted",
        "num_samples",
        "num_waiting_for_blocks",
        "released",
        "work",
    )

    def __init__(self, step_id: int, budget: int) -> None:
        self.id = step_id
        self.budget = budget
        self.leaves: tuple[int, ...] = ()
        self.copies: list[BlockCopy] = []
        self.joins: list[RowJoin] = []
        self.work: list[RowWork] = []
        self.by_row: dict[int, tuple[Sequence, int]] = {}
        """Sequence and its epoch by row, in the order of ``work``."""
        self.num_samples = 0
        self.num_preempted = 0
        self.num_waiting_for_blocks = 0
        """Number of sequences left out because an earlier plan's commit returns the block they need."""
        self.released: list[Block] = []
        """Blocks that were given up while this plan, the last to touch them, was in flight."""

    def join(self, seq: Sequence) -> None:
        """Add the join of a sequence that has a row and blocks to the plan."""
        assert seq.row is not None
        self.joins.append(
            RowJoin(
                row=seq.row,
                token_ids=tuple(seq.tokens),
                prompt_len=seq.prompt_len,
                block_ids=tuple([block.id for block in seq.blocks]),
                sampling=seq.request.sampling,
                choice=seq.choice,
            )
        )
        seq.joined = True

    def add(self, seq: Sequence, count: int, new_block_ids: tuple[int, ...] = ()) -> None:
        """Plan the next ``count`` tokens of ``seq``, and a sample if they are its last ones."""
        row, start = seq.row, seq.num_computed_tokens
        assert row is not None
        end = start + count
        choices: tuple[int, ...] = ()
        if end == seq.num_tokens:
            choices = seq.choices
            if choices:
                seq.num_tokens = end + 1
            if seq.pending_forks and end == seq.prompt_len:
                choices += seq.pending_forks
            self.num_samples += len(choices)
        prompt_logprobs = start < seq.prompt_len - 1 and seq.request.next_prompt_logprob <= min(end, seq.prompt_len - 1)
        self.work.append(RowWork(row, start, count, new_block_ids, choices, prompt_logprobs))
        self.by_row[row] = (seq, seq.epoch)
        self.budget -= count
        seq.num_computed_tokens = end
        seq.last_step = self.id

    def plan(self) -> StepPlan:
        return StepPlan(self.id, self.leaves, tuple(self.copies), tuple(self.joins), tuple(self.work))


class StepsInFlight:
    """The steps between plan and commit, oldest first, with consecutive ids."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._steps: deque[ScheduledStep] = deque()
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[ScheduledStep]:
        return iter(self._steps)

    @property
    def full(self) -> bool:
        return len(self._steps) >= self._limit

    def new(self, budget: int) -> ScheduledStep:
        return ScheduledStep(self._next_id, budget)

    def issue(self, step: ScheduledStep) -> None:
        self._steps.append(step)
        self._next_id += 1

    def find(self, step_id: int) -> ScheduledStep | None:
        """Return a step that is in flight; None for one that was committed."""
        if not self._steps or step_id < (oldest := self._steps[0].id):
            return None
        return self._steps[step_id - oldest]

    def oldest(self, step_id: int) -> ScheduledStep:
        """Return the oldest step, the next to be committed.

        Raises ``ValueError`` if that is not ``step_id``.
        """
        expected = self._steps[0].id if self._steps else None
        if step_id != expected:
            raise ValueError(f"step_id: got {step_id}, allowed: the oldest step in flight, {expected}")
        return self._steps[0]

    def pop(self) -> None:
        self._steps.popleft()
