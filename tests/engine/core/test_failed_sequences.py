"""KV that a fault has spoilt: no later request may read it for long."""

import pytest

from octavo_api.finish_reason import FinishReason
from octavo_testing.engine.core_requests import create_core, new_request, random_prompt
from octavo_testing.engine.core_session import Session, assert_expected

PROMPT = random_prompt(20)


def start(steps_in_flight=1, **changes):
    """Return a session whose engine computes 8 tokens of a prompt in a step."""
    return Session(create_core(steps_in_flight=steps_in_flight, long_prefill_token_threshold=8, **changes))


def reasons(session):
    return {request_id: output.finish_reason for (request_id, _), output in session.finished.items()}


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_blocks_of_a_failed_sequence_serve_no_later_request(steps_in_flight):
    session = start(steps_in_flight).add(new_request("a", PROMPT, max_tokens=4))
    session.turn()
    assert session.core.num_cached_blocks
    session.runner.poisoned_rows.add(0)
    session.run().assert_idle()
    assert reasons(session) == {"a": FinishReason.ERROR}
    assert session.core.num_cached_blocks == 0
    assert not session.mirror.parents, "routers still count on the blocks"
    again = new_request("b", PROMPT, max_tokens=4)
    assert_expected(session.add(again).run().assert_idle(), [again])


def test_a_fault_whose_sequence_was_aborted_fails_one_reader():
    session = start().add(new_request("a", PROMPT, max_tokens=4))
    session.turn()
    session.runner.poisoned_rows.add(0)
    session.turn()
    session.abort("a")
    session.turn()
    readers = [new_request(name, PROMPT, max_tokens=4) for name in "bcd"]
    for reader in readers:
        session.add(reader).run().assert_idle()
    assert reasons(session)["b"] is FinishReason.ERROR
    assert_expected(session, readers[1:])


@pytest.mark.parametrize("steps_in_flight", [1, 2])
def test_a_sequence_on_the_same_prefix_continues_and_names_no_more(steps_in_flight):
    session = start(steps_in_flight)
    healthy = new_request("healthy", (*PROMPT, *[7] * 5), max_tokens=30)
    session.add(healthy)
    for _ in range(5):
        session.turn()
    session.add(new_request("fails", (*PROMPT, *[9] * 20), max_tokens=4))
    for _ in range(steps_in_flight):  # the step that joins the row is executed last
        session.turn()
    session.runner.poisoned_rows.add(1)
    while "fails" not in reasons(session):
        session.turn()
    assert session.core.num_cached_blocks == 0
    session.run().assert_idle()
    assert session.core.num_cached_blocks == 0
    assert_expected(session, [healthy])
