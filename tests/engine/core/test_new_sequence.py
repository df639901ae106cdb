"""Accepted and rejected requests. A rejected request disturbs no other."""

import pytest

from octavo_api.blocks import HashSpace, chain_hashes
from octavo_api.errors import (
    CacheCapacityExceeded,
    ConfigurationError,
    ContextLengthExceeded,
    InvalidRequest,
    QueueFull,
)
from octavo_api.finish_reason import FinishReason
from octavo_api.sampling import SamplingParams
from octavo_engine.core.request import NewRequest
from octavo_testing.engine.core_requests import create_core, create_requests, new_request, random_prompt
from octavo_testing.engine.core_session import Session, assert_expected, run_to_completion
from octavo_testing.engine.fake_runner import expected_output


def test_a_prompt_beyond_the_cache_is_rejected_with_both_numbers():
    core = create_core(num_blocks=4)
    with pytest.raises(CacheCapacityExceeded, match=r"17 prompt tokens \+ 1 output tokens = 18.*16") as refused:
        core.add_request(new_request("big", random_prompt(17), max_tokens=None), 0.0)
    assert refused.value.param == "prompt"
    small = new_request("small", random_prompt(5))
    assert_expected(run_to_completion(core, [small]), [small])


@pytest.mark.parametrize(
    ("length", "max_tokens", "fits"),
    [(15, 1, True), (15, None, True), (16, 1, False), (16, None, False), (17, 1, False), (10, 6, True), (10, 7, False)],
)
def test_lengths_around_max_model_len(length, max_tokens, fits):
    core = create_core(max_model_len=16)
    new = new_request("r", random_prompt(length), max_tokens=max_tokens)
    if not fits:
        with pytest.raises(ContextLengthExceeded, match=rf"{length} prompt tokens.*16 \(max_model_len\)"):
            core.add_request(new, 0.0)
        assert not core.has_unfinished
        return
    session = run_to_completion(core, [new])
    expected = 16 - length if max_tokens is None else max_tokens
    assert len(session.outputs["r", 0]) == expected
    assert session.finished["r", 0].finish_reason is FinishReason.LENGTH


def test_max_tokens_beyond_the_cache_names_max_tokens():
    with pytest.raises(CacheCapacityExceeded) as refused:
        create_core(num_blocks=4).add_request(new_request("r", random_prompt(8), max_tokens=9), 0.0)
    assert refused.value.param == "max_tokens"


@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 14, 15])
def test_a_lone_request_fills_the_cache_and_ends_with_length(length, steps_in_flight):
    core = create_core(num_blocks=4, steps_in_flight=steps_in_flight)
    new = new_request("r", random_prompt(length), max_tokens=None)
    session = run_to_completion(core, [new], max_turns=64)
    assert session.outputs["r", 0] == expected_output(new, max_tokens=16 - length)
    assert session.finished["r", 0].finish_reason is FinishReason.LENGTH
    assert core.load().num_preemptions_total == 0
    again = new_request("next", random_prompt(3))
    assert_expected(session.add(again).run().assert_idle(), [again])


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"token_ids": ()}, "prompt"),
        ({"token_ids": (1, -1)}, "prompt"),
        ({"token_ids": (1, 2**31)}, "prompt"),
        ({"hashes": [b"x" * 16]}, "hashes"),
        ({"token_ids": tuple(range(1, 9)), "hashes": [b"x" * 16, b"y" * 16]}, "hashes"),
    ],
)
def test_bad_input_is_refused_by_name(changes, param):
    core = create_core()
    values = {"token_ids": (1, 2, 3), "hashes": None, **changes}
    with pytest.raises(InvalidRequest) as refused:
        core.add_request(new_request("r", values["token_ids"], hashes=values["hashes"]), 0.0)
    assert refused.value.param == param
    assert not core.has_unfinished


def test_min_tokens_beyond_the_remaining_room_is_rejected():
    new = new_request("r", random_prompt(10), max_tokens=None, min_tokens=7)
    with pytest.raises(InvalidRequest, match="min_tokens"):
        create_core(max_model_len=16).add_request(new, 0.0)


def test_hashes_of_another_salt_are_refused():
    core = create_core()
    root = HashSpace("test", "float32", 4).root("a")
    tokens = random_prompt(8)
    hashes = chain_hashes(root, tokens, 4)
    with pytest.raises(InvalidRequest, match="salt"):
        core.add_request(new_request("r", tokens, hashes=hashes, cache_salt="b"), 0.0)
    core.add_request(new_request("r", tokens, hashes=hashes, cache_salt="a"), 0.0)


def test_an_id_in_use_is_refused_and_free_again_after_the_end():
    session = Session(create_core()).add(new_request("r", random_prompt(3)))
    with pytest.raises(InvalidRequest, match="request_id"):
        session.add(new_request("r", random_prompt(4)))
    session.run().assert_idle()
    session.core.add_request(new_request("r", random_prompt(4)), 0.0)


def test_a_full_queue_rejects_at_once_with_retry_after():
    core = create_core(max_num_seqs=1, max_num_queued_reqs=1)
    requests = create_requests(4)
    session = Session(core).add(requests[0])
    session.turn()
    session.add(requests[1])
    with pytest.raises(QueueFull, match=r"1.*max_num_queued_reqs") as refused:
        session.add(requests[2])
    assert refused.value.retry_after_s >= 1.0
    session.run().assert_idle()
    assert set(session.finished) == {(0, 0), (1, 0)}
    session.add(requests[3]).run().assert_idle()
    assert_expected(session, [requests[0], requests[1], requests[3]])


def test_a_queue_limit_of_zero_accepts_requests_for_free_rows():
    session = Session(create_core(max_num_seqs=2, max_num_queued_reqs=0)).add(*create_requests(2))
    with pytest.raises(QueueFull):
        session.add(*create_requests(1, first_id=2))
    session.run().assert_idle()


def test_free_rows_do_not_count_while_the_next_request_lacks_blocks():
    core = create_core(num_blocks=8, max_num_seqs=128, max_num_batched_tokens=256, max_num_queued_reqs=3)
    session = Session(core).add(new_request("holds the cache", random_prompt(28), max_tokens=4))
    session.turn()
    with pytest.raises(QueueFull):
        session.add(*create_requests(100, length=20, max_tokens=4))
    assert core.load().num_requests_waiting == 3
    session.run().assert_idle()


def test_a_full_queue_refuses_a_request_without_reading_it():
    session = Session(create_core(max_num_seqs=1, max_num_queued_reqs=0)).add(*create_requests(1))
    with pytest.raises(QueueFull):
        session.add(NewRequest("r", None, None, SamplingParams()))
    session.run().assert_idle()


def test_aborted_requests_leave_the_queue_count():
    session = Session(create_core(max_num_seqs=1, max_num_queued_reqs=1)).add(*create_requests(2))
    session.abort(1)
    session.add(*create_requests(1, first_id=2)).run().assert_idle()


def test_drawn_seeds_are_a_stream_of_the_core_seed():
    def outputs(seed):
        requests = create_requests(3, same_prompt=True, seed=None)
        return run_to_completion(create_core(seed=seed), requests).outputs

    assert outputs(5) == outputs(5)
    assert outputs(5) != outputs(6)
    first, second, third = outputs(5).values()
    assert first != second != third
    assert outputs(None) != outputs(None)


@pytest.mark.parametrize(
    "changes", [{"num_blocks": 0}, {"block_size": 0}, {"steps_in_flight": 0}, {"max_num_batched_tokens": 15}]
)
def test_a_configuration_that_cannot_work_is_refused(changes):
    with pytest.raises(ConfigurationError, match=next(iter(changes))):
        create_core(**changes)
