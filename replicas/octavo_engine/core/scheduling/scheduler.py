"""Choice of the work of the next step."""

from bisect import insort
from operator import attrgetter

from octavo_engine.core.config import CoreConfig
from octavo_engine.core.kv.manager import KVCacheManager
from octavo_engine.core.plan import StepPlan
from octavo_engine.core.scheduling.preemption import PreemptionMode, VictimPolicy
from octavo_engine.core.scheduling.queue import WaitingQueue
from octavo_engine.core.scheduling.row_allocator import RowAllocator
from octavo_engine.core.state.sequence import Sequence
from octavo_engine.core.state.steps import ScheduledStep, StepsInFlight
from octavo_engine.core.stats import Totals

_KEY = attrgetter("key")


class Scheduler:
    """Sequences that run and wait in one order, the order policy's. Victims come from its end.

    Progress: the first running sequence is in every plan, unless it waits for blocks that plans in flight release. It
    is never a victim, and its blocks suffice when all others are released. If nothing runs and nothing is in flight,
    the first waiting sequence fits. So within ``longest prompt / smallest chunk`` plans a token is sampled and kept.
    """

    def __init__(
        self,
        config: CoreConfig,
        *,
        kv: KVCacheManager,
        steps: StepsInFlight,
        victims: VictimPolicy,
        preemption: PreemptionMode,
        totals: Totals,
    ) -> None:
        self.kv = kv
        self.steps = steps
        self.rows = RowAllocator(config.max_num_seqs)
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []
        """Sequences in order. A sequence without a row has ended and is dropped before the next plan."""
        self.num_queued_requests = 0
        """Number of requests that were never admitted."""
        self.step_tokens = 0
        self._budget = config.max_num_batched_tokens
        self._victims = victims
        self._preemption = preemption
        self._totals = totals
        self._prefilling: list[Sequence] = []
        self.reconfigure(config)

    def reconfigure(self, config: CoreConfig) -> None:
        """Apply the settings that may change while requests run."""
        self._chunk_size = config.long_prefill_token_threshold or self._budget

    @property
    def prefill_tokens(self) -> int:
        """Number of known tokens of running sequences that no plan computes yet."""
        missing = (seq.num_tokens - seq.num_computed_tokens for seq in self._prefilling if seq.row is not None)
        return sum(count for count in missing if count > 1)

    @property
    def num_startable(self) -> int:
        """Number of waiting sequences that free rows can take: none while the next one lacks blocks."""
        head = self.waiting.peek()
        if head is not None and not self.kv.fits(head, self.kv.find_hit(head)):
            return 0
        return self.rows.num_free

    def schedule(self, now: float) -> StepPlan | None:
        """Plan a step: decodes, then unfinished prompts, then waiting sequences.

        Returns None if there is nothing to do, or if the maximum number of plans is in flight.
        """
        if self.steps.full:
            return None
        if self.rows.num_used < len(self.running):
            self.running = [seq for seq in self.running if seq.row is not None]
        step = self.steps.new(self._budget)
        self._decode(step)
        self._prefill(step)
        if not step.num_preempted and not step.num_waiting_for_blocks:
            self._admit(step, now)
        if not step.work:
            return None
        step.leaves = self.rows.take_leaves()
        self.steps.issue(step)
        self.step_tokens = self._budget - step.budget
        self._totals.steps += 1
        return step.plan()

    def enqueue(self, seq: Sequence) -> None:
        """Queue the leader of a new request."""
        self.num_queued_requests += 1
        self._enqueue(seq)

    def start_fork(self, leader: Sequence, fork: Sequence) -> None:
        """Start a choice that has its first token on the prompt's blocks, if a row is free.

        Otherwise it waits, in front.
        """
        fork.num_tokens = len(fork.tokens)
        if self.rows.num_free:
            self.kv.fork(leader, fork)
            self._start(fork)
        else:
            fork.num_discarded_tokens = fork.prompt_len
            self._enqueue(fork)

    def remove(self, seq: Sequence) -> None:
        """End a sequence in any state. A leader that was never admitted ends together with its request."""
        if seq.row is None:
            self.waiting.discard(seq)
            if seq.request.admitted_at is None:
                self.num_queued_requests -= 1
        else:
            self.kv.release(seq)
            self._free_row(seq)

    def _decode(self, step: ScheduledStep) -> None:
        """Give one token to each sequence that lacks one; note the sequences that lack more."""
        self._prefilling.clear()
        for index, seq in enumerate(self.running):  # victims are at or behind `index`: the iteration stays valid
            missing = seq.num_tokens - seq.num_computed_tokens
            if missing > 1:
                self._prefilling.append(seq)
            elif missing == 0 or seq.num_tokens == seq.max_len:
                continue  # plans in flight will compute what it lacks
            elif seq.num_computed_tokens < seq.writable_until:
                step.add(seq, 1)
            elif (new_block_ids := self._make_room(seq, index, step)) is not None:
                if not seq.joined:
                    step.join(seq)
                    new_block_ids = ()
                step.add(seq, 1, new_block_ids)

    def _make_room(self, seq: Sequence, index: int, step: ScheduledStep) -> tuple[int, ...] | None:
        """Make the next position writable, at the cost of others if needed; None if not in this step."""
        while (new_block_ids := self.kv.extend(seq, step)) is None:
            if self.kv.num_pending_free > step.num_waiting_for_blocks:
                step.num_waiting_for_blocks += 1
                return None
            victim = self.running.pop(self._victims.choose(self.running, index))
            self._preempt(victim)
            step.num_preempted += 1
            if victim is seq:
                return None
        return new_block_ids

    def _prefill(self, step: ScheduledStep) -> None:
        for seq in self._prefilling:
            if not step.budget:
                break
            step.add(seq, min(seq.num_tokens - seq.num_computed_tokens, self._chunk_size, step.budget))

    def _admit(self, step: ScheduledStep, now: float) -> None:
        while step.budget and self.rows.num_free and (seq := self.waiting.peek()):
            hit = self.kv.find_hit(seq)
            if not self.kv.fits(seq, hit):
                break
            self.waiting.discard(seq)
            self.kv.admit(seq, hit)
            self._account(seq, now)
            self._start(seq)
            step.join(seq)
            step.add(seq, min(seq.num_tokens - seq.num_computed_tokens, self._chunk_size, step.budget))
            self._prefilling.append(seq)

    def _preempt(self, seq: Sequence) -> None:
        self._preemption.release(seq, self.kv)
        self._free_row(seq)
        self._enqueue(seq)
        seq.request.num_preemptions += 1
        self._totals.num_preemptions += 1

    def _account(self, seq: Sequence, now: float) -> None:
        """Count hits once, at a request's first admission, and count recomputed tokens from then on."""
        request, hit_tokens = seq.request, seq.num_computed_tokens
        if request.admitted_at is None:
            request.admitted_at = now
            if request.unreported_cached_tokens is not None:
                request.unreported_cached_tokens = hit_tokens
            self.num_queued_requests -= 1
            self._totals.prompt_tokens += seq.prompt_len
            if not request.wants_prompt_logprobs:
                self._totals.prefix_cache_queries += seq.prompt_len
                self._totals.prefix_cache_hits += hit_tokens
        self._totals.recomputed_tokens += max(0, seq.num_discarded_tokens - hit_tokens)

    def _enqueue(self, seq: Sequence) -> None:
        self.waiting.push(seq, self.kv.uncached_tokens(seq))

    def _start(self, seq: Sequence) -> None:
        seq.row = self.rows.take()
        seq.joined = False
        insort(self.running, seq, key=_KEY)

    def _free_row(self, seq: Sequence) -> None:
        assert seq.row is not None
        self.rows.leave(seq.row, joined=seq.joined)
        seq.row = None
