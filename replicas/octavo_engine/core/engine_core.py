"""The engine's core: requests in, plans out, outputs back.

It has no thread and no clock: the caller passes the time.
"""

from collections import abc
from random import Random

from octavo_api.blocks import BlockHash, Digest
from octavo_api.errors import EngineFailure, InvalidRequest, QueueFull, RequestError
from octavo_api.finish_reason import FinishReason
from octavo_api.settings import EngineSettings
from octavo_engine.core import integrity
from octavo_engine.core.config import CoreConfig
from octavo_engine.core.kv.events import CacheEvent, EventLog
from octavo_engine.core.kv.manager import KVCacheManager
from octavo_engine.core.lifecycle import Lifecycle
from octavo_engine.core.new_sequence import build_request
from octavo_engine.core.plan import StepOutput, StepPlan
from octavo_engine.core.request import NewRequest, RequestOutput
from octavo_engine.core.scheduling.preemption import LastInOrder, Recompute
from octavo_engine.core.scheduling.queue import ORDER_POLICIES
from octavo_engine.core.scheduling.scheduler import Scheduler
from octavo_engine.core.state.steps import ScheduledStep, StepsInFlight
from octavo_engine.core.state.stopping import Finish
from octavo_engine.core.stats import CoreLoad, Totals

_REFRESHED_PER_LOAD = 8
_RETRY_AFTER_S = (1.0, 60.0)


class EngineCore:
    """The requests, the scheduler and the KV cache of one engine.

    Every choice of every request that ``add_request`` accepted ends with exactly one output that has a finish reason.
    ``schedule`` makes plans; at most ``config.steps_in_flight`` of them are not committed. ``commit`` or ``fail_step``
    receives the result of each plan, in the order of the plans.
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
            victims=LastInOrder(),
            preemption=Recompute(),
            totals=self._totals,
        )
        self._order = ORDER_POLICIES[config.scheduling_policy]
        self._lifecycle = Lifecycle(self._scheduler)
        self._seeds = Random(config.seed)
        self._arrivals = 0

    # Requests

    @property
    def has_unfinished(self) -> bool:
        return bool(self._lifecycle.requests)

    def add_request(self, new: NewRequest, now: float) -> None:
        """Queue a request.

        Raises ``QueueFull`` if the maximum number of requests waits, before any other work; requests that the next
        step can start do not count. Raises ``InvalidRequest``, ``ContextLengthExceeded`` or ``CacheCapacityExceeded``.
        """
        self._lifecycle.now = now
        self._check_queue()
        if new.request_id in self._lifecycle.requests:
            raise InvalidRequest.field("request_id", new.request_id, "an id that is not in use")
        request = build_request(
            new,
            self.config,
            key=self._order.key(new.priority, now, self._arrivals),
            arrival=self._arrivals,
            drawn_seed=self._seeds.getrandbits(64),
            now=now,
        )
        self._arrivals += 1
        self._lifecycle.begin(request)

    def abort(self, request_id: abc.Hashable, now: float, choice: int | None = None) -> None:
        """End a request, or one choice of it. Ended and unknown ones stay as they are."""
        self._lifecycle.now = now
        request = self._lifecycle.requests.get(request_id)
        if request is None:
            return
        for live in request.live_choices:
            if choice is None or live == choice:
                self._lifecycle.end(request, live, Finish(FinishReason.ABORT))

    # Steps

    def schedule(self, now: float) -> StepPlan | None:
        """Return the next plan; None if there is nothing to do, or until the oldest plan is committed.

        Requests whose deadline has passed end here, in any state.
        """
        self._lifecycle.now = now
        self._lifecycle.expire()
        return self._scheduler.schedule(now)

    def commit(self, output: StepOutput, now: float) -> None:
        """Apply the output of the oldest plan in flight; raise ``ValueError`` if it does not match that plan.

        Work for sequences that were preempted or have ended since the plan was made is stale, and is dropped. A row
        that failed alone ends its request with ``EngineFailure``, and its blocks leave the prefix cache.
        """
        lifecycle = self._lifecycle
        lifecycle.now = now
        step = self._steps.oldest(output.step_id)
        by_row = step.by_row
        expected = step.num_samples - sum(len(work.choices) for work in step.work if work.row in output.failed)
        if len(output.sampled) != expected:
            raise ValueError(f"sampled: got {len(output.sampled)} tokens, allowed: one for each choice, {expected}")
        self._retire(step)
        for row, message in output.failed.items():
            seq, epoch = by_row[row]
            if seq.epoch == epoch:
                self._kv.unpublish(seq)
                lifecycle.fail(seq.request, EngineFailure(message))
        self._commit_written(step, output)
        for sampled in output.sampled:
            seq, epoch = by_row[sampled.row]
            if seq.epoch != epoch:
                continue
            if sampled.choice in seq.choices:
                lifecycle.append(seq, sampled)
            elif sampled.choice in seq.pending_forks:
                lifecycle.fork(seq, sampled)

    def fail_step(self, step_id: int, error: RequestError, now: float) -> None:
        """End the requests of the oldest plan in flight with ``error``, because the runner raised in it.

        All other requests continue. Nothing that the step was to write is published. Raises ``ValueError`` if
        ``step_id`` is not the oldest.
        """
        self._lifecycle.now = now
        step = self._steps.oldest(step_id)
        self._retire(step)
        for seq, epoch in step.by_row.values():
            if seq.epoch == epoch:
                self._lifecycle.fail(seq.request, error)
        self._scheduler.rows.repeat_leaves(step.leaves)

    def take_outputs(self) -> list[RequestOutput]:
        """Return all outputs since the last call, in order."""
        return self._lifecycle.take_outputs()

    # Prefix cache

    def take_events(self) -> list[CacheEvent]:
        """Return all changes of the prefix cache since the last call, in order."""
        return self._log.take()

    def snapshot(self) -> list[BlockHash]:
        """Return every held hash, parents before children."""
        return self._kv.cache.snapshot()

    @property
    def digest(self) -> Digest:
        return self._log.digest

    @property
    def num_cached_blocks(self) -> int:
        """Number of held hashes."""
        return len(self._kv.cache.nodes)

    def reset_prefix_cache(self) -> None:
        """Forget all prefixes. Running requests continue, and publish nothing from then on."""
        self._kv.reset_prefix_cache()

    # The whole

    def reconfigure(self, settings: EngineSettings) -> None:
        """Apply the settings that change while requests run."""
        self.config = self.config.with_live(settings)
        self._scheduler.reconfigure(self.config)

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
            generation_tokens_total=self._lifecycle.num_generated_tokens,
            evicted_blocks_total=self._kv.cache.num_evicted,
            steps_total=totals.steps,
        )

    def check_integrity(self) -> None:
        """Recompute all derived state from its sources; raise ``AssertionError`` at a difference."""
        integrity.check(self._scheduler, self._kv, self._steps, self._log.digest, self._lifecycle.requests.values())

    def _check_queue(self) -> None:
        waiting, limit = self._scheduler.num_queued_requests, self.config.max_num_queued_reqs
        if waiting >= limit and waiting >= limit + self._scheduler.num_startable:
            raise QueueFull(
                f"requests waiting: {waiting}, allowed: {limit} (max_num_queued_reqs)",
                retry_after_s=min(max(self._lifecycle.seconds_per_end, _RETRY_AFTER_S[0]), _RETRY_AFTER_S[1]),
            )

    def _retire(self, step: ScheduledStep) -> None:
        """End a step's hold on blocks, before any sequence releases the blocks before them."""
        self._steps.pop()
        self._kv.release_step(step)

    def _commit_written(self, step: ScheduledStep, output: StepOutput) -> None:
        """Publish blocks that are full now, and deliver log probabilities of prompts."""
        block_size, kv = self.config.block_size, self._kv
        for work, (seq, epoch) in zip(step.work, step.by_row.values(), strict=True):
            if seq.epoch != epoch:
                continue
            end = work.start + work.count
            if end >= (seq.num_published + 1) * block_size:
                kv.publish(seq, end)
            if work.prompt_logprobs:
                entries = output.prompt_logprobs[work.row]
                self._lifecycle.append_prompt_logprobs(seq.request, work.start + 1, entries)
