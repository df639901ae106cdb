"""Time of one routing decision: index lookup, predictions, cost of every replica, choice; and of its reservation.

    python benchmarks/router_select.py

Prompts have 512 blocks (8,192 tokens at 16 a block), and some replicas hold 90 % of them. The prompts branch off shared
documents at different depths, so that each lookup meets several distinct sets of holders.
"""

import random
import statistics
import time

from octavo_api.blocks import HashSpace
from octavo_api.settings import RoutingPolicy
from octavo_router.routing.chain import Chain
from octavo_router.routing.cost import Candidate
from octavo_router.routing.index import DictIndex
from octavo_router.routing.overlay import Overlay
from octavo_router.routing.replica_load import FleetRates, LoadView, ReplicaLoad
from octavo_router.routing.select import Selector

SPACE = HashSpace("model", "bfloat16", 16, 1)
DEPTH = 512
DOCUMENTS = 32
DECISIONS = 4000


def build(replicas: int, rng: random.Random) -> tuple[Selector, list[Candidate], list[Chain]]:
    index = DictIndex()
    documents = [[rng.getrandbits(64) for _ in range(DEPTH)] for _ in range(DOCUMENTS)]
    candidates = []
    for number in range(replicas):
        slot = index.add_slot()
        index.set_live(slot, True)
        for document in documents:
            if rng.random() < max(0.1, 1.5 / replicas):
                index.store(slot, document[: rng.randint(DEPTH // 4, DEPTH)])
        view = LoadView(
            known=True,
            queued_tokens=rng.randint(0, 4000),
            num_requests=rng.randint(0, 40),
            num_decoding=20,
            prefill_tokens_per_s=10_000,
            decode_step_s=0.02,
            kv_blocks=20_000,
            kv_blocks_used=rng.randint(0, 12_000),
        )
        key = rng.getrandbits(64)
        candidates.append(
            Candidate.of(view, name=f"replica-{number}", rendezvous_key=key, slot=slot, space=SPACE, confidence=1.0)
        )
    chains = []
    for _ in range(256):
        document = rng.choice(documents)
        shared = int(DEPTH * 0.9)
        keys = document[:shared] + [rng.getrandbits(64) for _ in range(DEPTH - shared)]
        chains.append(Chain(b"", tuple(keys), rng.getrandbits(64)))
    return Selector(index, Overlay()), candidates, chains


def measure(replicas: int, policy: RoutingPolicy, *, predictions: bool) -> tuple[list[float], list[float]]:
    """Returns microseconds of each decision, and of each reservation with its prediction."""
    rng = random.Random(replicas)
    selector, candidates, chains = build(replicas, rng)
    load = ReplicaLoad(FleetRates())
    selecting, reserving = [], []
    for request in range(DECISIONS):
        chain = rng.choice(chains)
        now = request / 1000
        began = time.perf_counter()
        decision = selector.select(
            candidates,
            {SPACE: chain},
            prompt_tokens=DEPTH * 16 + 5,
            output_tokens=128.0,
            policy=policy,
            now=now,
        )
        chosen = time.perf_counter()
        assert decision is not None
        load.reserve(request, uncached_tokens=100, blocks=7)
        if predictions:
            selector.overlay.record(chain.keys, decision.known_keys, decision.candidate.slot, now, 2.0)
        reserved = time.perf_counter()
        load.release(request)
        selecting.append((chosen - began) * 1e6)
        reserving.append((reserved - chosen) * 1e6)
    assert not selector.failures
    return selecting[DECISIONS // 4 :], reserving[DECISIONS // 4 :]


def percentiles(times: list[float]) -> str:
    cuts = statistics.quantiles(times, n=100)
    return f"{statistics.median(times):7.1f} {cuts[98]:7.1f}"


def main() -> None:
    print(f"{'replicas':>8} {'policy':<12} {'select p50':>11} {'p99':>7}   {'reserve p50':>11} {'p99':>7}   (µs)")
    for replicas in (2, 8, 64, 256):
        for policy in RoutingPolicy:
            selecting, reserving = measure(replicas, policy, predictions=policy is RoutingPolicy.PREFIX)
            print(f"{replicas:>8} {policy.value:<12}     {percentiles(selecting)}       {percentiles(reserving)}")


if __name__ == "__main__":
    main()
