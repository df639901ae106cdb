"""Placement of requests: candidates and hashes first, then decision, reservation and Submit in one section."""

import asyncio
import time
from collections.abc import Collection, Mapping

from octavo_api.blocks import HashSpace
from octavo_api.errors import DeadlineExceeded
from octavo_api.settings import RoutingPolicy
from octavo_api.v1 import replica_pb2
from octavo_router.fleet.attempt import Attempt
from octavo_router.fleet.engine_request import EngineRequest
from octavo_router.fleet.holding import Holding
from octavo_router.fleet.members import Members
from octavo_router.fleet.observer import Observer
from octavo_router.fleet.replica import Replica
from octavo_router.routing.chain import Chain, hash_prompt
from octavo_router.routing.cost import Candidate
from octavo_router.routing.route import Reason, Route
from octavo_router.routing.select import Selector

MIN_PREDICTION_S = 2.0
MAX_PREDICTION_S = 60.0
"""Bounds of the seconds for which a replica is predicted to hold the prefix of a request on its way there."""

HASH_OFF_LOOP_TOKENS = 4096
"""Maximum tokens of a prompt that is hashed on the event loop."""

FIRST_MEAN_OUTPUT_TOKENS = 128.0
OUTPUT_SMOOTHING = 0.05


class Placement:
    """Choice of a replica for each attempt of each request."""

    def __init__(
        self, members: Members, holding: Holding, selector: Selector, observer: Observer, *, policy: RoutingPolicy
    ) -> None:
        self.policy = policy
        self._members = members
        self._holding = holding
        self._selector = selector
        self._observer = observer
        self._mean_output_tokens = FIRST_MEAN_OUTPUT_TOKENS

    async def candidates(
        self, request: EngineRequest, chains: dict[HashSpace, Chain], excluded: Collection[str]
    ) -> list[Candidate]:
        """Return the replicas that can take the request, and add the missing hashes of its prompt to ``chains``.

        Raise ``NoReplica``, ``Draining`` or ``DeadlineExceeded``.
        """
        try:
            while True:
                candidates = await self._holding.candidates(excluded, request.deadline)
                missing = self._members.spaces - chains.keys()
                if not missing:
                    return candidates
                async with asyncio.timeout_at(request.deadline):
                    for space in missing:
                        chains[space] = await _hash(request, space)
        except TimeoutError:
            raise DeadlineExceeded("the deadline passed while the request waited for a replica") from None

    def send(
        self,
        request: EngineRequest,
        candidates: list[Candidate],
        chains: Mapping[HashSpace, Chain],
        attempt: Attempt,
        *,
        is_retry: bool,
    ) -> tuple[Replica, Route]:
        """Decide, reserve and predict without a turn of the loop between, so that the next decision sees all three.

        ``candidates`` is the result of ``candidates`` from the same turn.
        """
        sampling = request.sampling
        prompt = len(request.token_ids)
        output = min(sampling.max_tokens or self._mean_output_tokens, self._mean_output_tokens) * sampling.n
        started = time.perf_counter()
        now = asyncio.get_running_loop().time()
        decision = self._selector.select(
            candidates, chains, prompt_tokens=prompt, output_tokens=output, policy=self.policy, now=now
        )
        assert decision is not None, "there is at least one candidate"
        self._observer.select_seconds(time.perf_counter() - started)
        chosen = decision.candidate
        chain = chains[chosen.space]
        replica = self._members[chosen.name]
        uncached = prompt - decision.cached_tokens
        submit = replica_pb2.Submit(
            request_id=request.request_id,
            token_ids=request.token_ids,
            hashes=chain.packed,
            sampling=sampling.to_proto(),
            priority=request.priority,
            cache_salt=request.cache_salt,
            timeout_s=max(0.001, request.deadline - now),
        )
        blocks = int(uncached + output) // chosen.space.block_size + 1
        replica.send(attempt, submit, uncached_tokens=uncached, blocks=blocks)
        ttl = min(MAX_PREDICTION_S, max(MIN_PREDICTION_S, 2 * decision.cost_s))
        self._selector.overlay.record(chain.keys, decision.known_keys, chosen.slot, now, ttl)
        route = Route(
            replica=chosen.name,
            policy=self.policy.value,
            reason=Reason.RETRY if is_retry else decision.reason,
            predicted_cached_tokens=decision.cached_tokens,
            cost_s=decision.cost_s,
        )
        self._observer.decision(route)
        return replica, route

    def observe_cached(self, route: Route, cached_tokens: int) -> None:
        """Compare a prediction with the prompt tokens that the engine found in its cache."""
        self._observer.prediction(route.predicted_cached_tokens, cached_tokens)

    def observe_output(self, tokens: float) -> None:
        """Add the length of one choice to the mean that predicts the length of the next ones."""
        self._mean_output_tokens += OUTPUT_SMOOTHING * (tokens - self._mean_output_tokens)


async def _hash(request: EngineRequest, space: HashSpace) -> Chain:
    if len(request.token_ids) <= HASH_OFF_LOOP_TOKENS:
        return hash_prompt(request.token_ids, space, request.cache_salt)
    return await asyncio.to_thread(hash_prompt, request.token_ids, space, request.cache_salt)
