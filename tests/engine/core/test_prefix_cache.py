"""Held prefixes, hits, and the events for routers."""

import pytest

from octavo_api.blocks import HashSpace, chain_hashes
from octavo_engine.core.kv.events import Cleared, Removed, Stored
from octavo_testing.engine.core_requests import create_core, create_requests, new_request, random_prompt
from octavo_testing.engine.core_session import Session, assert_expected, run_to_completion


def hashes_of(tokens, salt=""):
    return chain_hashes(HashSpace("test", "float32", 4).root(salt), tokens, 4)


def cached_tokens(session, request_id):
    return session.by_choice[request_id, 0][0].cached_tokens


def test_generated_tokens_extend_the_chain():
    core = create_core()
    first = new_request("first", random_prompt(6), max_tokens=10)
    session = run_to_completion(core, [first])
    conversation = (*first.token_ids, *session.outputs["first", 0])
    assert core.snapshot() == hashes_of(conversation[:15])
    session.add(new_request("second", (*conversation, 5))).run().assert_idle()
    assert cached_tokens(session, "second") == 12
    load = core.load()
    assert (load.prefix_cache_queries_total, load.prefix_cache_hits_total) == (6 + 17, 12)


def test_hashes_that_came_along_are_those_computed_here():
    tokens = random_prompt(13)
    given = new_request("given", tokens, hashes=hashes_of(tokens))
    computed = new_request("computed", tokens)
    core = create_core()
    session = run_to_completion(core, [given]).add(computed).run().assert_idle()
    assert cached_tokens(session, "computed") == 12


def test_salts_never_share():
    tokens = random_prompt(20)
    session = Session(create_core())
    for name, salt in [("a1", "a"), ("b1", "b"), ("none", ""), ("a2", "a")]:
        session.add(new_request(name, tokens, cache_salt=salt)).run()
    session.assert_idle(salts=("", "a", "b"))
    assert [cached_tokens(session, name) for name in ("a1", "b1", "none", "a2")] == [0, 0, 0, 16]


def test_nothing_is_published_before_it_is_written():
    core = create_core(steps_in_flight=2, long_prefill_token_threshold=8)
    tokens = random_prompt(32)
    session = Session(core).add(new_request("writer", tokens, max_tokens=1))
    session.schedule()
    session.schedule()
    assert core.num_cached_blocks == 0
    session.commit()
    assert core.snapshot() == hashes_of(tokens[:8])
    session.abort("writer")
    session.commit()
    assert core.snapshot() == hashes_of(tokens[:8]), "the writer was gone when its second chunk came back"
    reader = new_request("reader", tokens)
    session.add(reader).run().assert_idle()
    assert cached_tokens(session, "reader") == 8
    assert_expected(session, [reader])


def test_prompt_logprobs_do_not_read_the_cache_but_fill_it():
    core = create_core()
    tokens = random_prompt(14)
    scored = new_request("scored", tokens, prompt_logprobs=2, max_tokens=2)
    again = new_request("again", tokens, prompt_logprobs=2, max_tokens=2)
    plain = new_request("plain", tokens, max_tokens=2)
    session = run_to_completion(core, [scored]).add(again).run().add(plain).run().assert_idle()
    assert [cached_tokens(session, name) for name in ("scored", "again", "plain")] == [0, 0, 12]
    for name in ("scored", "again"):
        entries = [e for output in session.by_choice[name, 0] for e in output.prompt_logprobs]
        assert [e.token_id for e in entries] == list(tokens[1:])
    assert core.load().prefix_cache_queries_total == 14


def test_prompt_logprobs_come_chunk_by_chunk():
    new = new_request("r", random_prompt(10), prompt_logprobs=0, max_tokens=1, n=2)
    session = run_to_completion(create_core(long_prefill_token_threshold=4), [new])
    assert [len(o.prompt_logprobs) for o in session.by_choice["r", 0]] == [4, 4, 1, 0]
    assert not any(o.prompt_logprobs for o in session.by_choice["r", 1])


def test_eviction_takes_the_end_of_a_chain_first():
    core = create_core(num_blocks=12)
    chain = random_prompt(33, 1)
    session = run_to_completion(core, [new_request("chain", chain, max_tokens=1)])
    assert core.num_cached_blocks == 8
    session.add(new_request("other", random_prompt(24, 2), max_tokens=1)).run().assert_idle()
    assert core.load().evicted_blocks_total == 2
    session.add(new_request("again", chain, max_tokens=1)).run().assert_idle()
    assert cached_tokens(session, "again") == 24


def test_least_recently_used_chains_go_first():
    core = create_core(num_blocks=12)
    session = Session(core)
    chains = {name: random_prompt(13, seed) for seed, name in enumerate("abc")}
    for name in ("a", "b", "c", "a"):
        session.add(new_request(f"{name}{session.num_plans}", chains[name], max_tokens=1)).run()
    session.add(new_request("new", random_prompt(21, 9), max_tokens=1)).run()
    held = set(core.snapshot())
    assert [len(held.intersection(hashes_of(chains[name]))) for name in "abc"] == [3, 0, 3]
    session.assert_idle()


def test_events_are_runs_of_a_chain_in_order():
    core = create_core(num_blocks=4)
    tokens = random_prompt(9, 1)
    session = Session(core, check=False)
    session.add(new_request("a", tokens, max_tokens=1)).run()
    first = hashes_of(tokens)
    assert core.take_events() == [Stored(None, tuple(first))]
    longer = (*tokens[:8], *random_prompt(5, 2))
    session.add(new_request("b", longer, max_tokens=1)).run()
    assert core.take_events() == [Stored(first[1], (hashes_of(longer)[2],))]
    session.add(new_request("c", random_prompt(13, 3), max_tokens=1)).run()
    removed, stored = core.take_events()
    assert removed == Removed(tuple(reversed(hashes_of(longer))))
    assert stored == Stored(None, tuple(hashes_of(random_prompt(13, 3))))
    core.reset_prefix_cache()
    assert core.take_events() == [Cleared()]
    assert core.snapshot() == []


def test_twins_that_compute_the_same_prefix_keep_it_reachable():
    """Both write blocks of their own; whoever ends first, what the other one adds still has its parents."""
    for survivor in ("a", "b"):
        core = create_core(num_blocks=16)
        tokens = random_prompt(12)
        session = Session(core)
        for name in ("a", "b"):
            length = 12 if name == survivor else 1
            session.add(new_request(name, tokens, max_tokens=length, seed=3))
        session.turn()
        assert core.num_cached_blocks == 3
        filler = new_request("filler", random_prompt(20, 5), max_tokens=1)
        session.add(filler).run().assert_idle()
        follow_up = (*tokens, *session.outputs[survivor, 0])
        session.add(new_request("next", follow_up, max_tokens=1)).run().assert_idle()
        assert cached_tokens(session, "next") == 20


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_reset_while_requests_run_frees_nothing_that_is_used(steps_in_flight):
    core = create_core(steps_in_flight=steps_in_flight)
    requests = create_requests(3, length=9, max_tokens=9, n=2)
    session = Session(core).add(*requests)
    for _ in range(3):
        session.turn()
    pinned = core.load().kv_blocks_pinned
    core.reset_prefix_cache()
    assert core.load().kv_blocks_pinned == pinned
    session.run().assert_idle()
    assert_expected(session, requests)
    assert core.num_cached_blocks == 0, "what was computed before the reset is not published after it"


def test_without_caching_no_block_is_held_and_no_event_sent():
    core = create_core(enable_prefix_caching=False)
    session = Session(core, check=False)
    session.add(*create_requests(3, length=20, same_prompt=True)).run()
    assert core.take_events() == []
    assert core.num_cached_blocks == core.load().prefix_cache_hits_total == core.load().kv_blocks_cached == 0
