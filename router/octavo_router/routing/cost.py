"""Cost of a request at a replica, in seconds: for itself and for the requests that are there already.

::

    queue    tokens to prefill before it / μ      it waits for them
    prefill  its own uncached tokens / μ          it, the decoding requests there and the next requests wait for them
    decode   output tokens · rows beside it       they slow it, and it slows them
    memory   rises without bound as referenced blocks near the cache's size; beyond it, preemption

μ is the replica's measured prefill speed. All terms are linear in the request's own numbers. So a ``Candidate`` holds
the coefficients, made once for each report. A decision over many replicas is a few multiplications for each. The terms
are those of Dynamo's router with units, and LMetric's product (uncached tokens x batch) as the second.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo_api.blocks import HashSpace
from octavo_api.settings import RoutingPolicy
from octavo_router.routing.replica_load import LoadView

WINDOW_S = 0.005
WINDOW_SHARE = 0.05
"""Costs closer than this to the least are equal, because predictions are no better.

The distance is the larger of ``WINDOW_S``, in seconds, and this share of the least cost.
"""

FOLLOWERS = 1.0
"""Number of later requests that a prefill delays: ρ / (1 - ρ) in a single queue, here at the utilisation one half.

It is the cost of a recomputed prefix at a replica without waiting requests. So a burst does not compute one prefix at
every replica.
"""

DOUBLING_ROWS = 32
"""Number of additional rows that add the time of one empty decode step. A step grows with its rows, but slowly."""

MEMORY_S = 0.02
"""Cost of memory in seconds if half of the cache is referenced. At the share x it is x / (1 - x) times this."""

INADMISSIBLE_S = 1e6
"""Cost in seconds if the request does not fit without preemption. Such a replica is chosen only if no other fits."""

_MASK64 = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Candidate:
    """One replica as input of a decision. ``rendezvous_key`` is the same in every router."""

    name: str
    rendezvous_key: int
    slot: int
    space: HashSpace
    confidence: float
    known: bool
    queue_s: float
    uncached_token_s: float
    output_token_s: float
    kv_blocks: int
    kv_blocks_free: int

    @classmethod
    def of(
        cls, view: LoadView, *, name: str, rendezvous_key: int, slot: int, space: HashSpace, confidence: float
    ) -> "Candidate":
        rate = view.prefill_tokens_per_s
        return cls(
            name=name,
            rendezvous_key=rendezvous_key,
            slot=slot,
            space=space,
            confidence=confidence,
            known=view.known,
            queue_s=view.queued_tokens / rate,
            uncached_token_s=(1 + FOLLOWERS + view.num_requests) / rate,
            output_token_s=2 * view.decode_step_s * view.num_requests / (DOUBLING_ROWS + view.num_decoding),
            kv_blocks=view.kv_blocks,
            kv_blocks_free=view.kv_blocks - view.kv_blocks_used,
        )


@dataclass(frozen=True, slots=True)
class Work:
    """One request. ``novel_key`` is the first key of its chain that no replica holds. ``number`` counts decisions."""

    prompt_tokens: int
    output_tokens: float
    novel_key: int
    number: int


@dataclass(frozen=True, slots=True)
class Selected:
    """The selected candidate, by its position."""

    index: int
    cost_s: float


Policy = Callable[[Sequence[Candidate], Sequence[int], Work], Selected]
"""Function of candidates (at least one, in a fixed order), the cached prompt tokens of each, and the request."""


def prefix(candidates: Sequence[Candidate], cached: Sequence[int], work: Work) -> Selected:
    """Choose the least cost. Among near-equal costs choose the replica that every router chooses for this continuation.

    So a burst of prompts with the same new prefix meets at one replica, whichever gateways it came through.
    """
    return cheapest(candidates, costs(candidates, cached, work), work.novel_key)


def least_load(candidates: Sequence[Candidate], cached: Sequence[int], work: Work) -> Selected:
    """Choose the least cost as if no prompt token were cached, and at random among near-equal costs."""
    return cheapest(candidates, costs(candidates, [0] * len(candidates), work), mix(work.number))


def round_robin(candidates: Sequence[Candidate], cached: Sequence[int], work: Work) -> Selected:
    """Choose the replicas in turn, whatever the cost."""
    index = work.number % len(candidates)
    return Selected(index, costs(candidates[index : index + 1], cached[index : index + 1], work)[0])


POLICIES: dict[RoutingPolicy, Policy] = {
    RoutingPolicy.PREFIX: prefix,
    RoutingPolicy.LEAST_LOAD: least_load,
    RoutingPolicy.ROUND_ROBIN: round_robin,
}


def costs(candidates: Sequence[Candidate], cached: Sequence[int], work: Work) -> list[float]:
    """Return the cost of each candidate in seconds."""
    result = []
    prompt, output = work.prompt_tokens, work.output_tokens
    for candidate, held in zip(candidates, cached, strict=True):
        uncached = prompt - held
        cost = candidate.queue_s + candidate.uncached_token_s * uncached + candidate.output_token_s * output
        if blocks := candidate.kv_blocks:
            left = candidate.kv_blocks_free - (uncached + output) / candidate.space.block_size
            cost += MEMORY_S * (blocks / left - 1.0) if left > 0 else INADMISSIBLE_S
        result.append(cost)
    return result


def cheapest(candidates: Sequence[Candidate], costs: Sequence[float], key: int) -> Selected:
    """Choose the least cost. Within the window choose the highest rendezvous score for ``key``."""
    least = min(costs)
    limit = least + max(WINDOW_S, WINDOW_SHARE * least)
    near = [index for index, cost in enumerate(costs) if cost <= limit]
    if len(near) > 1:
        index = max(near, key=lambda index: mix(candidates[index].rendezvous_key ^ key))
    else:
        index = near[0]
    return Selected(index, costs[index])


def mix(value: int) -> int:
    """Apply SplitMix64's finalizer: every bit of the 64 depends on every bit of ``value``."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)
