"""Choice of the replica for a request: the holders of its prefix, the cost of each, and the reason.

``select`` neither waits nor raises. After any error in it, some replica is chosen, and the decision's reason is
``degraded``.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo_api.blocks import HashSpace
from octavo_api.settings import RoutingPolicy
from octavo_router.routing.chain import Chain
from octavo_router.routing.cost import POLICIES, Candidate, Work
from octavo_router.routing.index import PrefixIndex
from octavo_router.routing.overlay import Overlay
from octavo_router.routing.route import Reason

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen replica. ``cached_tokens`` is the larger of its reported and its predicted cached prompt tokens.

    ``known_keys`` is the same in keys of the chain, not discounted.
    """

    candidate: Candidate
    reason: Reason
    cached_tokens: int
    known_keys: int
    cost_s: float


@dataclass(slots=True)
class Selector:
    """Inputs of decisions that outlive one decision: index, predictions, and the number of decisions so far."""

    index: PrefixIndex
    overlay: Overlay
    num_decisions: int = 0
    failures: int = 0

    def select(
        self,
        candidates: Sequence[Candidate],
        chains: Mapping[HashSpace, Chain],
        *,
        prompt_tokens: int,
        output_tokens: float,
        policy: RoutingPolicy,
        now: float,
    ) -> Decision | None:
        """Return a decision, or None if there is no candidate.

        Candidates without known load count only if all are such.
        """
        if not candidates:
            return None
        self.num_decisions += 1
        try:
            return self._select(candidates, chains, prompt_tokens, output_tokens, policy, now)
        except Exception:
            self.failures += 1
            log.exception("routing failed, choosing any replica")
            return Decision(candidates[self.num_decisions % len(candidates)], Reason.DEGRADED, 0, 0, 0.0)

    def _select(
        self,
        candidates: Sequence[Candidate],
        chains: Mapping[HashSpace, Chain],
        prompt_tokens: int,
        output_tokens: float,
        policy: RoutingPolicy,
        now: float,
    ) -> Decision:
        candidates = [candidate for candidate in candidates if candidate.known] or candidates
        held: dict[int, int] = {}
        predicted: dict[int, int] = {}
        novel_key = deepest = 0
        for space, chain in chains.items():
            hits = self.index.lookup(chain.keys)
            _expand(held, hits)
            _expand(predicted, self.overlay.lookup(chain.keys, now))
            depth = hits[0].depth if hits else 0
            if not novel_key or depth * space.tokens_per_key > deepest:
                novel_key = chain.keys[depth] if depth < len(chain.keys) else chain.tail
                deepest = depth * space.tokens_per_key

        cached = [0] * len(candidates)
        confirmed = [0] * len(candidates)
        if touched := held.keys() | predicted.keys():
            for position, candidate in enumerate(candidates):
                slot = candidate.slot
                if slot in touched:
                    per_key = candidate.space.tokens_per_key
                    usable = (prompt_tokens - 1) // candidate.space.block_size * candidate.space.block_size
                    confirmed[position] = min(usable, int(held.get(slot, 0) * per_key * candidate.confidence))
                    cached[position] = max(confirmed[position], min(usable, predicted.get(slot, 0) * per_key))

        selected = POLICIES[policy](
            candidates, cached, Work(prompt_tokens, output_tokens, novel_key, self.num_decisions)
        )
        chosen = candidates[selected.index]
        reason = _reason(selected.index, chosen, cached, confirmed, policy)
        known_keys = max(held.get(chosen.slot, 0), predicted.get(chosen.slot, 0))
        return Decision(chosen, reason, cached[selected.index], known_keys, selected.cost_s)


def _expand(depths: dict[int, int], hits: Sequence[tuple[int, int]]) -> None:
    for mask, depth in hits:
        while mask:
            low = mask & -mask
            depths[low.bit_length() - 1] = depth
            mask ^= low


def _reason(
    index: int, chosen: Candidate, cached: Sequence[int], confirmed: Sequence[int], policy: RoutingPolicy
) -> Reason:
    if not chosen.known:
        return Reason.DEGRADED
    if policy is not RoutingPolicy.PREFIX:
        return Reason.POLICY
    best = max(cached)
    if not best:
        return Reason.COLD
    if cached[index] < best:
        return Reason.SPILL
    return Reason.HIT if confirmed[index] == best else Reason.PREDICTED
