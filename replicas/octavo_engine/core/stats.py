"""Figures that the core knows: gauges of now, totals since the start."""

from dataclasses import dataclass


@dataclass(slots=True)
class Totals:
    """Counters of events and tokens. The counters of the prefix cache count tokens."""

    num_preemptions: int = 0
    recomputed_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    prompt_tokens: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class CoreLoad:
    """The fields of ``octavo.v1.Load`` that the core knows, under the same names.

    A request of ``n`` choices counts once for each choice that has a row, or waits for one. ``waiting_uncached_tokens``
    is an estimate: the core compares a waiting prompt with the cache on arrival and then occasionally.
    """

    num_requests_running: int
    num_requests_waiting: int
    waiting_uncached_tokens: int
    running_prefill_tokens: int
    kv_blocks: int
    kv_blocks_pinned: int
    kv_blocks_cached: int
    step_tokens: int
    num_preemptions_total: int
    recomputed_tokens_total: int
    prefix_cache_queries_total: int
    prefix_cache_hits_total: int
    prompt_tokens_total: int
    generation_tokens_total: int
    evicted_blocks_total: int
    steps_total: int
