"""The engine's core: requests in, plans out, outputs back. No thread, no clock: the caller says what time it is."""

from collections import abc
from dataclasses import replace
from heapq import heappop, heappush
from random import Random

from octavo_api.blocks import BlockHash, root_hash
from octavo_api.errors import DeadlineExceeded, EngineFailure, InvalidRequest, QueueFull, RequestError
from octavo_engine.core import integrity
from octavo_engine.core.admission import resolve_hashes, resolve_sampling
from octavo_engine.core.config import CoreConfig
from octavo_engine.core.events import CacheEvent, Digest, EventLog
from octavo_engine.core.kv_cache import KVCacheManager
from octavo_engine.core.load import CoreLoad, Totals
from octavo_engine.core.plan import Logprobs, Sampled, StepOutput, StepPlan
from octavo_engine.core.preemption import LastAdmitted, Recompute
from octavo_engine.core.queue import ORDER_POLICIES
from octavo_engine.core.request import FinishReason, NewRequest, Request, RequestOutput, Sequence
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.core.steps import Step, StepsInFlight
from octavo_engine.core.stopping import Finish, StopRule

_REFRESHED_PER_LOAD = 8
_SMOOTHING = 0.2
_RETRY_AFTER_S = (1.0, 60.0)


class EngineCore:
    """Every choice of every request that ``add_request`` took ends with exactly one output that has a finish reason.

    ``schedule`` makes plans, at most ``config.steps_in_flight`` ahead of the oldest that is not committed; ``commit``
    or ``fail_step`` takes what came of each, in the order of the plans.
    """

    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self._log = EventLog()
        self._steps = StepsInFlight(config.steps_in_flight)
        self._kv = KVCacheManager(
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
            log=self._log,
            steps=self._steps,
        )
        self._totals = Totals()
        self._scheduler = Scheduler(
            config,
            kv=self._kv,
            steps=self._steps,
            victims=LastAdmitted(),
            preemption=Recompute(),
            totals=self._totals,
        )
        self._order = ORDER_POLICIES[config.scheduling_policy]
        self._seeds = Random(config.seed)
        self._requests: dict[abc.Hashable, Request] = {}
        self._deadlines: list[tuple[float, int, abc.Hashable]] = []
        self._arrivals = 0
        self._outputs: list[RequestOutput] = []
        self._now = 0.0
        self._last_end: float | None = None
        self._seconds_per_end = 0.0

    # Requests

    @property
    def has_unfinished(self) -> bool:
        return bool(self._requests)

    def add_request(self, new: NewRequest, now: float) -> None:
        """Queues a request.

        Raises ``InvalidRequest``, ``ContextLengthExceeded``, ``CacheCapacityExceeded``, or ``QueueFull`` when as many
        requests wait as may, those that a free row waits for not counted.
        """
        self._now = now
        config, scheduler = self.config, self._scheduler
        if new.request_id in self._requests:
            raise InvalidRequest.field("request_id", new.request_id, "an id that is not in use")
        sampling = resolve_sampling(new, config, drawn_seed=self._seeds.getrandbits(64))
        if scheduler.num_unadmitted >= config.max_num_queued_reqs + scheduler.rows.num_free:
            raise QueueFull(
                f"requests waiting: {scheduler.num_unadmitted}, max_num_queued_reqs: {config.max_num_queued_reqs}",
                retry_after_s=min(max(self._seconds_per_end, _RETRY_AFTER_S[0]), _RETRY_AFTER_S[1]),
            )
        request = self._new_request(new, replace(new, sampling=sampling), now)
        self._requests[new.request_id] = request
        if new.deadline is not None:
            heappush(self._deadlines, (new.deadline, request.arrival, request.id))
        scheduler.num_unadmitted += 1
        scheduler.wait(request.leader)

    def abort(self, request_id: abc.Hashable, choice: int | None = None) -> None:
        """Ends a request, or one choice of it, now. What has ended or is not known is left as it is."""
        request = self._requests.get(request_id)
        if request is None:
            return
        for live in request.live_choices:
            if choice is None or live == choice:
                self._end(request, live, Finish(FinishReason.ABORT))

    # Steps

    def schedule(self, now: float) -> StepPlan | None:
        """Returns the next plan; None when there is nothing to do, or before the oldest plan is committed.

        Requests whose deadline has passed end here, whatever state they are in.
        """
        self._now = now
        self._expire()
        return self._scheduler.schedule(now)

    def commit(self, output: StepOutput, now: float) -> None:
        """Takes what the oldest plan in flight brought; raises ``ValueError`` if ``output`` is not that plan's.

        Work for sequences that were preempted or have ended since it was planned is stale, and dropped.
        """
        self._now = now
        step = self._steps.oldest(output.step_id)
        expected = step.num_samples - sum(len(work.choices) for work in step.work if work.row in output.failed)
        if len(output.sampled) != expected:
            raise ValueError(f"sampled: got {len(output.sampled)} tokens, allowed: one for each choice, {expected}")
        self._settle(step)
        by_row = step.by_row
        for row, message in output.failed.items():
            self._fail(*by_row[row], EngineFailure(message))
        self._commit_written(step, output)
        for sampled in output.sampled:
            seq, epoch = by_row[sampled.row]
            if seq.epoch != epoch:
                continue
            if sampled.choice in seq.choices:
                self._append(seq, sampled)
            elif sampled.choice in seq.unforked:
                self._fork(seq, sampled)

    def fail_step(self, step_id: int, error: RequestError, now: float) -> None:
        """The runner raised in the oldest plan in flight: its requests end with ``error``, all others go on.

        Nothing that the step was to write is published.
        """
        self._now = now
        step = self._steps.oldest(step_id)
        self._settle(step)
        for seq, epoch in step.by_row.values():
            self._fail(seq, epoch, error)
        self._scheduler.rows.leave_again(step.leaves)

    def take_outputs(self) -> list[RequestOutput]:
        """Returns all outputs since the last call, in order."""
        outputs, self._outputs = self._outputs, []
        return outputs

    # Prefix cache

    def take_events(self) -> list[CacheEvent]:
        """Returns all changes of the prefix cache since the last call, in order."""
        return self._log.take()

    def snapshot(self) -> list[BlockHash]:
        """Returns every held hash, parents before children."""
        return self._kv.cache.snapshot()

    @property
    def digest(self) -> Digest:
        return self._log.digest

    @property
    def num_cached_blocks(self) -> int:
        """The number of held hashes."""
        return len(self._kv.cache.nodes)

    def reset_prefix_cache(self) -> None:
        """Forgets all prefixes. Requests that run now go on, and publish nothing any more."""
        self._kv.reset_prefix_cache()

    # The whole

    def reconfigure(self, *, long_prefill_token_threshold: int, max_num_queued_reqs: int) -> None:
        """Changes what may change while requests run. Raises ``ConfigurationError``."""
        self.config = replace(
            self.config,
            long_prefill_token_threshold=long_prefill_token_threshold,
            max_num_queued_reqs=max_num_queued_reqs,
        )
        self._scheduler.set_chunk_size(long_prefill_token_threshold)

    def load(self) -> CoreLoad:
        scheduler, pool, totals = self._scheduler, self._kv.pool, self._totals
        scheduler.waiting.refresh(_REFRESHED_PER_LOAD, self._kv.uncached_tokens)
        return CoreLoad(
            num_requests_running=scheduler.rows.num_used,
            num_requests_waiting=len(scheduler.waiting),
            waiting_uncached_tokens=scheduler.waiting.uncached_tokens,
            running_prefill_tokens=scheduler.prefill_tokens,
            kv_blocks=len(pool.blocks),
            kv_blocks_pinned=len(pool.blocks) - pool.num_free,
            kv_blocks_cached=pool.num_cached_free,
            step_tokens=scheduler.step_tokens,
            num_preemptions_total=totals.num_preemptions,
            recomputed_tokens_total=totals.recomputed_tokens,
            prefix_cache_queries_total=totals.prefix_cache_queries,
            prefix_cache_hits_total=totals.prefix_cache_hits,
            prompt_tokens_total=totals.prompt_tokens,
            generation_tokens_total=totals.generation_tokens,
            evicted_blocks_total=self._kv.cache.num_evicted,
            steps_total=totals.steps,
        )

    def check_integrity(self) -> None:
        """Recomputes everything that is kept from what it is kept of; raises ``AssertionError`` at a difference."""
        integrity.check(self._scheduler, self._kv, self._steps, self._log.digest, self._requests.values())

    # Inside

    def _new_request(self, new: NewRequest, resolved: NewRequest, now: float) -> Request:
        config, sampling, prompt_len = self.config, resolved.sampling, len(new.token_ids)
        assert sampling.max_tokens is not None
        root = root_hash(
            model_key=config.model_key,
            kv_dtype=config.kv_dtype,
            block_size=config.block_size,
            cache_salt=new.cache_salt,
        )
        request = Request(
            id=new.request_id,
            sampling=sampling,
            stop=StopRule.of(sampling, config.eos_token_ids),
            arrival=self._arrivals,
            arrived_at=now,
            root=root,
            next_prompt_logprob=prompt_len if sampling.prompt_logprobs is None else 1,
        )
        request.leader = request.sequences[0] = Sequence(
            request=request,
            choice=0,
            key=self._order.key(new.priority, self._arrivals, 0),
            tokens=list(new.token_ids),
            prompt_len=prompt_len,
            max_len=prompt_len + sampling.max_tokens,
            hashes=resolve_hashes(new, root, config) if config.enable_prefix_caching else [],
            choices=(0,),
            unforked=tuple(range(1, sampling.n)),
        )
        self._arrivals += 1
        return request

    def _settle(self, step: Step) -> None:
        """Ends a step's hold on blocks, before anybody lets go of what stands before them."""
        self._steps.pop()
        self._kv.settle(step)

    def _commit_written(self, step: Step, output: StepOutput) -> None:
        """Publishes blocks that are full now, and hands on log probabilities of prompts."""
        block_size, kv = self.config.block_size, self._kv
        for work, (seq, epoch) in zip(step.work, step.by_row.values(), strict=True):
            if seq.epoch != epoch:
                continue
            end = work.start + work.count
            if end >= (seq.num_published + 1) * block_size:
                kv.publish(seq, end)
            if work.prompt_logprobs:
                self._hand_on_prompt_logprobs(seq.request, work.start + 1, output.prompt_logprobs[work.row])

    def _hand_on_prompt_logprobs(self, request: Request, first: int, entries: tuple[Logprobs, ...]) -> None:
        """Positions that were handed on before a preemption are not handed on again."""
        due = entries[request.next_prompt_logprob - first :]
        request.next_prompt_logprob += len(due)
        if due and 0 in request.sequences:
            self._emit(request, 0, prompt_logprobs=due)

    def _append(self, seq: Sequence, sampled: Sampled) -> None:
        """Gives a sequence the token that was sampled for it, and ends it if that was its last."""
        request = seq.request
        token_id = sampled.token_id
        seq.tokens.append(token_id)
        self._totals.generation_tokens += 1
        if request.first_token_at is None:
            request.first_token_at = self._now
        logprobs = () if sampled.logprobs is None else (sampled.logprobs,)
        finish = request.stop.check(token_id, len(seq.tokens) - seq.prompt_len)
        if finish is None:
            self._emit(request, seq.choice, (token_id,), logprobs)
        else:
            self._end(request, seq.choice, finish, token_ids=(token_id,), logprobs=logprobs)

    def _fork(self, leader: Sequence, sampled: Sampled) -> None:
        """Makes a choice a sequence of its own, on the prompt's blocks if a row is free, else at the queue's front."""
        request, scheduler = leader.request, self._scheduler
        fork = leader.fork(sampled.choice)
        request.sequences[fork.choice] = fork
        leader.unforked = tuple([choice for choice in leader.unforked if choice != fork.choice])
        self._append(fork, sampled)
        if fork.choice in request.sequences:
            fork.num_tokens = len(fork.tokens)
            if scheduler.rows.num_free:
                self._kv.fork(leader, fork)
                scheduler.start(fork)
            else:
                fork.num_lost_tokens = fork.prompt_len
                scheduler.wait(fork)
        self._drop_idle(leader)

    def _fail(self, seq: Sequence, epoch: int, error: RequestError) -> None:
        """Ends the request of a sequence that a step failed for; nothing that the step wrote for it is published."""
        if seq.epoch == epoch:
            self._end_request(seq.request, error)

    def _end_request(self, request: Request, error: RequestError) -> None:
        for choice in request.live_choices:
            self._end(request, choice, Finish(FinishReason.ERROR), error=error)

    def _end(
        self,
        request: Request,
        choice: int,
        finish: Finish,
        *,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[Logprobs, ...] = (),
        error: RequestError | None = None,
    ) -> None:
        """The one place where a choice ends. The leader computes the prompt on for choices that are to fork from it."""
        leader = request.leader
        seq = request.sequences.pop(choice, None)
        if seq is None:
            leader.unforked = tuple([other for other in leader.unforked if other != choice])
        elif seq is leader:
            leader.choices = ()
        else:
            self._scheduler.remove(seq)
        self._drop_idle(leader)
        last = not request.live_choices
        if last:
            del self._requests[request.id]
            self._scheduler.num_unadmitted -= request.admitted_at is None
            self._note_end()
        self._emit(request, choice, token_ids, logprobs, finish=finish, error=error, last=last)

    def _drop_idle(self, leader: Sequence) -> None:
        if not leader.choices and not leader.unforked:
            self._scheduler.remove(leader)

    def _emit(
        self,
        request: Request,
        choice: int,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[Logprobs, ...] = (),
        prompt_logprobs: tuple[Logprobs, ...] = (),
        finish: Finish | None = None,
        error: RequestError | None = None,
        last: bool = False,
    ) -> None:
        cached_tokens, request.unreported_cached_tokens = request.unreported_cached_tokens, None
        self._outputs.append(
            RequestOutput(
                request.id,
                choice,
                token_ids,
                logprobs,
                prompt_logprobs,
                None if finish is None else finish.reason,
                None if finish is None else finish.stop_token_id,
                cached_tokens,
                error,
                request.timing(self._now) if last else None,
            )
        )

    def _expire(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= self._now:
            deadline, arrival, request_id = heappop(self._deadlines)
            request = self._requests.get(request_id)
            if request is not None and request.arrival == arrival:
                allowed, state = deadline - request.arrived_at, "queued" if request.admitted_at is None else "running"
                self._end_request(
                    request, DeadlineExceeded(f"the deadline, {allowed:.3g} s after arrival, passed while {state}")
                )

    def _note_end(self) -> None:
        """Keeps the smoothed time between ends of requests, which is how often a place in the queue comes free."""
        if self._last_end is not None:
            self._seconds_per_end += _SMOOTHING * (self._now - self._last_end - self._seconds_per_end)
        self._last_end = self._now
