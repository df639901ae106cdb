import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_api.blocks import HashSpace
from octavo_api.settings import RoutingPolicy
from octavo_router.routing.chain import Chain
from octavo_router.routing.cost import Candidate
from octavo_router.routing.index import DictIndex
from octavo_router.routing.overlay import Overlay
from octavo_router.routing.route import Reason
from octavo_router.routing.select import Selector


def keys(number, seed=1):
    rng = random.Random(seed)
    return [rng.getrandbits(64) for _ in range(number)]


def test_no_candidate_is_the_only_reason_for_no_decision(bench):
    assert bench.select(keys(3)) is None


def test_the_replica_that_holds_the_prefix_is_chosen(bench):
    for name in "abc":
        bench.replica(name)
    prompt = keys(20)
    bench.hold("b", prompt[:18])
    decision = bench.select(prompt)
    assert decision.candidate.name == "b"
    assert decision.reason is Reason.HIT
    assert decision.cached_tokens == 18 * 16


def test_a_hit_never_covers_the_whole_prompt(bench):
    bench.replica("a")
    prompt = keys(4)
    bench.hold("a", prompt)
    assert bench.select(prompt, prompt_tokens=64).cached_tokens == 48


def test_waiting_longer_than_computing_spills(bench):
    bench.replica("a", queued_tokens=5000)
    bench.replica("b")
    prompt = keys(40)
    bench.hold("a", prompt)
    decision = bench.select(prompt)
    assert (decision.candidate.name, decision.reason) == ("b", Reason.SPILL)


def test_a_short_wait_is_worth_a_long_prefix(bench):
    bench.replica("a", queued_tokens=200)
    bench.replica("b")
    prompt = keys(40)
    bench.hold("a", prompt)
    assert bench.select(prompt).candidate.name == "a"


def test_a_prefill_costs_more_where_many_requests_decode(bench):
    bench.replica("a", num_requests=30, num_decoding=30)
    bench.replica("b", queued_tokens=300)
    decision = bench.select(keys(40))
    assert (decision.candidate.name, decision.reason) == ("b", Reason.COLD)


def test_a_full_cache_is_avoided_however_short_its_queue(bench):
    bench.replica("a", kv_blocks_used=995)
    bench.replica("b", queued_tokens=3000)
    assert bench.select(keys(40)).candidate.name == "b"


def test_a_request_that_fits_nowhere_is_still_sent(bench):
    bench.replica("a", kv_blocks_used=999)
    bench.replica("b", kv_blocks_used=999)
    assert bench.select(keys(40)) is not None


def test_an_unknown_load_is_not_zero(bench):
    bench.replica("a", known=False)
    bench.replica("b", queued_tokens=100_000)
    decision = bench.select(keys(10))
    assert (decision.candidate.name, decision.reason) == ("b", Reason.COLD)


def test_with_unknown_loads_the_decision_is_degraded(bench):
    bench.replica("a", known=False)
    bench.replica("b", known=False, queued_tokens=1000)
    decision = bench.select(keys(10))
    assert (decision.candidate.name, decision.reason) == ("a", Reason.DEGRADED)


def test_keys_in_doubt_count_half(bench):
    bench.replica("a")
    prompt = keys(20)
    bench.hold("a", prompt)
    assert bench.select(prompt, confidence=0.5).cached_tokens == 160


def test_every_router_sends_the_same_new_continuation_to_the_same_replica(bench):
    for name in "abcdefgh":
        bench.replica(name)
    system = keys(10)
    for seed in range(20):
        chosen = {bench.select(system + keys(3, seed=100 + seed) + keys(1, seed=index)) for index in range(5)}
        assert len({decision.candidate.name for decision in chosen}) == 1


def test_unrelated_prompts_cover_all_replicas_evenly(bench):
    for name in "abcd":
        bench.replica(name)
    chosen = Counter(bench.select(keys(5, seed)).candidate.name for seed in range(400))
    assert set(chosen) == set("abcd")
    assert max(chosen.values()) < 140


def test_prompts_too_short_for_a_block_do_not_all_go_to_one(bench):
    for name in "abcd":
        bench.replica(name)
    rng = random.Random(5)
    chosen = {bench.select([], tail=rng.getrandbits(64), prompt_tokens=7).candidate.name for _ in range(60)}
    assert chosen == set("abcd")


def test_a_new_prefix_on_its_way_to_a_replica_counts_as_held_there(bench):
    for name in "abcd":
        bench.replica(name)
    prompt = keys(40)
    first = bench.select(prompt)
    bench.selector.overlay.record(prompt, 0, first.candidate.slot, bench.now, ttl=2.0)
    sibling = prompt[:32] + keys(8, seed=2)
    decision = bench.select(sibling)
    assert decision.candidate.name == first.candidate.name
    assert decision.reason is Reason.PREDICTED
    assert decision.cached_tokens == 32 * 16
    bench.now += 2.1
    assert bench.select(sibling).reason is Reason.COLD


def test_policies_without_prefixes_report_the_reason_policy(bench):
    for name in "abc":
        bench.replica(name, queued_tokens=0 if name == "c" else 9000)
    prompt = keys(20)
    bench.hold("a", prompt)
    least = bench.select(prompt, policy=RoutingPolicy.LEAST_LOAD)
    assert (least.candidate.name, least.reason) == ("c", Reason.POLICY)
    turns = [bench.select(prompt, policy=RoutingPolicy.ROUND_ROBIN).candidate.name for _ in range(6)]
    assert sorted(turns[:3]) == ["a", "b", "c"]
    assert turns[:3] == turns[3:]


def test_least_load_spreads_equal_prompts_over_equal_replicas(bench):
    for name in "abcd":
        bench.replica(name)
    prompt = keys(10)
    chosen = Counter(bench.select(prompt, policy=RoutingPolicy.LEAST_LOAD).candidate.name for _ in range(200))
    assert set(chosen) == set("abcd")


def test_replicas_of_two_hash_spaces_are_compared_in_tokens(bench):
    other = HashSpace("newer model", "float32", 32, 2)
    candidates = []
    for name, space in (("a", bench.space), ("b", other)):
        bench.replica(name)
        candidates.append(
            Candidate.of(
                bench.views[name], name=name, rendezvous_key=1, slot=bench.slots[name], space=space, confidence=1.0
            )
        )
    old, new = keys(64, seed=1), keys(16, seed=2)
    bench.hold("a", old[:16])
    bench.hold("b", new[:12])
    chains = {bench.space: Chain(b"", tuple(old), 0), other: Chain(b"", tuple(new), 0)}
    decision = bench.selector.select(
        candidates, chains, prompt_tokens=1025, output_tokens=1, policy=RoutingPolicy.PREFIX, now=0.0
    )
    assert (decision.candidate.name, decision.cached_tokens) == ("b", 12 * 64)


def test_a_failure_inside_still_chooses_and_is_counted(bench, monkeypatch):
    bench.replica("a")
    monkeypatch.setattr(bench.index, "lookup", lambda keys: 1 / 0)
    decision = bench.select(keys(3))
    assert (decision.candidate.name, decision.reason) == ("a", Reason.DEGRADED)
    assert bench.selector.failures == 1


numbers = st.integers(0, 2**40)
floats = st.floats(0, 1e12)


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_select_never_fails_whatever_the_state(data):
    index = DictIndex()
    selector = Selector(index, Overlay())
    chain = tuple(data.draw(st.lists(st.integers(0, 2**64 - 1), max_size=30, unique=True)))
    spaces = [HashSpace("m", "f", size, stride) for size, stride in ((1, 1), (16, 1), (256, 4))]
    candidates = []
    for number in range(data.draw(st.integers(1, 6))):
        slot = index.add_slot()
        index.set_live(slot, data.draw(st.booleans()))
        index.store(slot, chain[: data.draw(st.integers(0, 30))])
        candidates.append(
            Candidate(
                name=str(number),
                rendezvous_key=data.draw(st.integers(0, 2**64 - 1)),
                slot=slot,
                space=data.draw(st.sampled_from(spaces)),
                confidence=data.draw(st.sampled_from([0.5, 1.0])),
                known=data.draw(st.booleans()),
                queue_s=data.draw(floats),
                uncached_token_s=data.draw(floats),
                output_token_s=data.draw(floats),
                kv_blocks=data.draw(numbers),
                kv_blocks_free=data.draw(st.integers(-(2**40), 2**40)),
            )
        )
    if data.draw(st.booleans()):
        selector.overlay.record(chain, 0, data.draw(st.integers(0, 8)), 0.0, 5.0)
    for policy in RoutingPolicy:
        decision = selector.select(
            candidates,
            {space: Chain(b"", chain, 0) for space in data.draw(st.sets(st.sampled_from(spaces)))},
            prompt_tokens=data.draw(st.integers(0, 2**20)),
            output_tokens=data.draw(st.floats(0, 1e6)),
            policy=policy,
            now=1.0,
        )
        assert decision is not None
        assert decision.candidate in candidates
    assert selector.failures == 0


@pytest.mark.parametrize("replicas", [2, 5])
def test_a_burst_in_one_tick_is_spread_by_the_reservations(bench, replicas):
    """Each decision sees the previous one, so 64 long prompts at once do not herd (sglang#27547)."""
    queued = dict.fromkeys("abcdefgh"[:replicas], 0)
    chosen = Counter()
    for seed in range(64):
        for name, tokens in queued.items():
            bench.replica(name, queued_tokens=tokens)
        decision = bench.select(keys(60, seed))
        chosen[decision.candidate.name] += 1
        queued[decision.candidate.name] += 960
    assert max(chosen.values()) <= -(-64 // replicas) + 1
