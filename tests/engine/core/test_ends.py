"""The end of a choice: once, for the right reason, with nothing left behind."""

import pytest

from octavo_api.errors import DeadlineExceeded, EngineFailure
from octavo_api.finish_reason import FinishReason
from octavo_api.sampling import SamplingParams
from octavo_engine.core.plan import StepOutput
from octavo_engine.core.state.stopping import Finish, StopRule
from octavo_testing.engine.core_requests import create_core, create_requests, new_request, random_prompt
from octavo_testing.engine.core_session import Session, assert_expected, run_to_completion
from octavo_testing.engine.core_states import STATES, bring_to
from octavo_testing.engine.fake_runner import expected_output

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.mark.parametrize(
    ("token", "count", "options", "expected"),
    [
        (2, 1, {}, Finish(STOP)),
        (3, 1, {}, None),
        (3, 5, {}, Finish(LENGTH)),
        (2, 5, {}, Finish(STOP)),
        (9, 5, {}, Finish(STOP, 9)),
        (9, 1, {}, Finish(STOP, 9)),
        (2, 1, {"stop_token_ids": (2,)}, Finish(STOP)),
        (2, 1, {"ignore_eos": True}, None),
        (2, 5, {"ignore_eos": True}, Finish(LENGTH)),
        (2, 1, {"ignore_eos": True, "stop_token_ids": (2,)}, Finish(STOP, 2)),
        (2, 2, {"min_tokens": 3}, None),
        (9, 2, {"min_tokens": 3}, None),
        (2, 3, {"min_tokens": 3}, Finish(STOP)),
        (2, 5, {"min_tokens": 5}, Finish(STOP)),
        (3, 5, {"min_tokens": 5}, Finish(LENGTH)),
    ],
)
def test_end_token_before_stop_token_before_length(token, count, options, expected):
    sampling = SamplingParams(**{"max_tokens": 5, "stop_token_ids": (9,), **options})
    assert StopRule.of(sampling, frozenset({2})).check(token, count) == expected


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_an_end_token_ends_the_choice_and_is_its_last_token(steps_in_flight):
    tokens = random_prompt(6)
    free = expected_output(new_request("r", tokens, max_tokens=12))
    core = create_core(eos_token_ids=frozenset({free[5]}), steps_in_flight=steps_in_flight)
    session = run_to_completion(core, [new_request("r", tokens, max_tokens=12, ignore_eos=False)])
    assert session.outputs["r", 0] == free[:6]
    assert (session.finished["r", 0].finish_reason, session.finished["r", 0].stop_token_id) == (STOP, None)


def test_a_stop_token_is_named():
    tokens = random_prompt(6)
    free = expected_output(new_request("r", tokens))
    session = run_to_completion(create_core(), [new_request("r", tokens, stop_token_ids=(free[2],))])
    assert session.outputs["r", 0] == free[:3]
    assert (session.finished["r", 0].finish_reason, session.finished["r", 0].stop_token_id) == (STOP, free[2])


def test_logprobs_come_with_their_tokens():
    session = run_to_completion(create_core(), [new_request("r", random_prompt(5), logprobs=0)])
    for output in session.by_choice["r", 0]:
        assert [entry.token_id for entry in output.logprobs] == list(output.token_ids)


@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("how", ["abort", "deadline"])
def test_aborted_or_late_in_any_state_ends_once_and_leaks_nothing(how, state, n, steps_in_flight):
    core = create_core(steps_in_flight=steps_in_flight, long_prefill_token_threshold=4)
    new = new_request("r", random_prompt(17), n=n, max_tokens=30, deadline=100.0)
    session = Session(core).add(new)
    bring_to(session, state)
    if how == "abort":
        session.abort("r")
        session.abort("r")
    else:
        session.now = 100.0
    other = new_request("other", random_prompt(9, 8))
    session.add(other).run().assert_idle()
    assert session.outputs["other", 0] == expected_output(other)
    for choice in range(n):
        end = session.finished["r", choice]
        assert end.finish_reason is (FinishReason.ABORT if how == "abort" else FinishReason.ERROR)
        assert how == "abort" or isinstance(end.error, DeadlineExceeded)
    assert len(session.timings("r")) == 1
    session.abort("r")
    session.abort("never heard of", 3)
    assert core.take_outputs() == []


def test_the_error_of_a_deadline_has_the_allowed_seconds():
    session = Session(create_core())
    session.now = 50.0
    session.add(new_request("r", random_prompt(5), deadline=52.5, max_tokens=100)).run()
    assert session.finished["r", 0].error.message == "deadline: 2.5 s after arrival, passed while running"
    assert session.finished["r", 0].error.http_status == 504


def test_a_deadline_of_an_earlier_request_with_the_same_id_means_nothing():
    session = Session(create_core())
    session.add(new_request("r", random_prompt(5), deadline=10.0, max_tokens=2)).run()
    session.finished.clear()
    session.by_choice.clear()
    session.now = 9.0
    session.add(new_request("r", random_prompt(5), max_tokens=8)).run().assert_idle()
    assert session.finished["r", 0].finish_reason is LENGTH


def test_ids_that_are_prefixes_of_each_other_are_different_requests():
    requests = [new_request(i, random_prompt(5, 1)) for i in ("1", "10", "1_0", "0_1", 1)]
    session = Session(create_core()).add(*requests)
    session.turn()
    session.abort("1")
    session.run().assert_idle()
    assert session.finished["1", 0].finish_reason is FinishReason.ABORT
    assert_expected(session, requests[1:])


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_abort_with_the_last_token_in_flight_gives_one_end(steps_in_flight):
    session = Session(create_core(steps_in_flight=steps_in_flight))
    session.add(new_request("r", random_prompt(5), max_tokens=1))
    session.schedule()
    session.abort("r")
    session.commit()
    session.collect()
    session.assert_idle()
    assert session.finished["r", 0].finish_reason is FinishReason.ABORT
    assert session.outputs["r", 0] == []


def test_a_failed_step_ends_its_requests_and_no_other():
    core = create_core(max_num_seqs=2)
    requests = create_requests(3, length=9)
    session = Session(core).add(*requests)
    session.turn()
    session.schedule()
    held = core.num_cached_blocks
    session.fail("device lost")
    session.run().assert_idle()
    for i in (0, 1):
        assert session.finished[i, 0].finish_reason is FinishReason.ERROR
        assert session.finished[i, 0].error.message == "device lost"
    assert_expected(session, requests[2:])
    assert core.num_cached_blocks >= held


def test_a_failed_first_chunk_publishes_nothing():
    core = create_core()
    session = Session(core).add(*create_requests(1, length=16, n=3))
    session.schedule()
    session.fail()
    session.run().assert_idle()
    assert core.num_cached_blocks == 0
    assert len(session.finished) == 3


def test_leaves_of_a_failed_step_are_repeated_for_free_rows():
    session = Session(create_core(max_num_seqs=3))
    session.add(*create_requests(2, max_tokens=1), *create_requests(1, first_id=2))
    session.turn()
    session.add(*create_requests(1, first_id=3))
    failed = session.schedule()
    assert sorted(failed.leaves) == [0, 1]
    assert [join.row for join in failed.joins] == [1]
    session.fail()
    session.add(*create_requests(1, first_id=4))
    assert sorted(session.schedule().leaves) == [0, 1, 2]
    session.run().assert_idle()


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_a_row_that_fails_alone_ends_its_request_alone(steps_in_flight):
    core = create_core(steps_in_flight=steps_in_flight)
    requests = create_requests(3)
    session = Session(core).add(*requests)
    session.turn()
    while len(session.plans) < steps_in_flight:
        session.schedule()
    plan, _ = session.plans.popleft()
    output = session.runner.execute(plan)
    row = plan.work[1].row
    sampled = tuple(s for s in output.sampled if s.row != row)
    core.commit(StepOutput(plan.step_id, sampled, failed={row: "logits were not finite"}), session.now)
    session.run().assert_idle()
    assert isinstance(session.finished[1, 0].error, EngineFailure)
    assert_expected(session, [requests[0], requests[2]])
