"""Memory of ended requests: free at their end, without the garbage collector."""

import gc

import pytest

from octavo_api.errors import QueueFull
from octavo_engine.core.plan import Sampled, StepOutput
from octavo_engine.core.state.sequence import Request, Sequence
from octavo_testing.engine.core_requests import create_core, create_requests, new_request, random_prompt
from octavo_testing.engine.core_session import Session
from octavo_testing.engine.core_states import STATES, bring_to


@pytest.fixture(autouse=True)
def _without_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def num_alive(session):
    """Count requests and sequences after the next turn of an idle engine."""
    assert session.schedule() is None
    return sum(isinstance(item, (Request, Sequence)) for item in gc.get_objects())


@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("how", ["abort", "deadline", "failure", "length"])
def test_nothing_of_an_ended_request_is_alive(how, state, n, steps_in_flight):
    core = create_core(steps_in_flight=steps_in_flight, long_prefill_token_threshold=4)
    session = Session(core).add(new_request("r", random_prompt(17), n=n, max_tokens=30, deadline=100.0))
    bring_to(session, state)
    if how == "abort":
        session.abort("r")
    elif how == "deadline":
        session.now = 100.0
    elif how == "failure" and session.plans:
        session.fail()
    session.run().assert_idle()
    assert not core.has_unfinished
    assert num_alive(session) == 0


def test_aborted_requests_leave_the_queue_at_once():
    core = create_core(max_num_seqs=1, max_num_queued_reqs=50)
    session = Session(core).add(*create_requests(40, max_tokens=50))
    session.turn()
    for request_id in range(2, 40):
        session.abort(request_id)
    session.turn()
    assert sum(isinstance(item, Sequence) for item in gc.get_objects()) == 2
    session.run().assert_idle()


def test_a_refused_request_leaves_nothing():
    core = create_core(max_num_seqs=1, max_num_queued_reqs=1)
    session = Session(core).add(new_request("r", random_prompt(8), max_tokens=5), new_request("s", random_prompt(8)))
    with pytest.raises(QueueFull):
        session.add(new_request("t", random_prompt(8), deadline=9.0))
    session.run().assert_idle()
    assert num_alive(session) == 0


def test_memory_is_flat_over_many_requests_with_distant_deadlines():
    core = create_core(max_num_queued_reqs=50)
    sizes = []
    for first_id in range(0, 5000, 50):
        for new in create_requests(50, first_id=first_id, max_tokens=1, deadline=1e9):
            core.add_request(new, 0.0)
        while (plan := core.schedule(0.0)) is not None:
            sampled = [Sampled(work.row, choice, 5) for work in plan.work for choice in work.choices]
            core.commit(StepOutput(plan.step_id, tuple(sampled)), 0.0)
        core.take_outputs(), core.take_events()
        sizes.append(len(gc.get_objects()))
    assert max(sizes[50:]) <= max(sizes[:50]) + 10
