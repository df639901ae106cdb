from hypothesis import given
from hypothesis import strategies as st

from octavo_api.errors import EngineFailure
from octavo_api.finish_reason import FinishReason
from octavo_api.v1 import replica_pb2, sampling_pb2
from octavo_engine.core.plan import Logprobs
from octavo_engine.core.request import RequestOutput
from octavo_engine.service.messages import add_to_output, size_bound
from octavo_engine.service.outbox import CacheState, Outbox


def state(num_blocks: int = 0) -> CacheState:
    return CacheState(replica_pb2.Load(num_requests_running=num_blocks), replica_pb2.Digest(xor=num_blocks), num_blocks)


def stored(*hashes: int) -> list[replica_pb2.CacheEvent]:
    return [replica_pb2.CacheEvent(stored=replica_pb2.Stored(hashes=hashes))]


def test_outputs_of_one_choice_become_one():
    outbox = Outbox(7, state())
    outbox.add_output(1, RequestOutput("r", 0, (5,), logprobs=(Logprobs(5, -1.0, ((5, -1.0),)),), cached_tokens=16))
    outbox.add_output(1, RequestOutput("r", 1, (9,)))
    outbox.add_output(1, RequestOutput("r", 0, (6, 7), logprobs=(Logprobs(6, -2.0), Logprobs(7, -3.0))))
    outbox.add_output(1, RequestOutput("r", 0, (8,), finish_reason=FinishReason.STOP, stop_token_id=8))
    (message,) = outbox.take()
    first, second = message.step.outputs
    assert (first.id, first.choice, list(first.token_ids)) == (1, 0, [5, 6, 7, 8])
    assert [item.chosen.logprob for item in first.logprobs] == [-1.0, -2.0, -3.0]
    assert first.cached_tokens == 16
    assert first.finish_reason == sampling_pb2.FINISH_REASON_STOP
    assert first.stop_token_id == 8
    assert (second.choice, list(second.token_ids), second.finish_reason) == (1, [9], 0)


def prompt_of(positions: int, top: int) -> tuple[Logprobs, ...]:
    entry = Logprobs(2**31 - 1, -0.5, tuple((2**31 - 1 - i, -1.5) for i in range(top)))
    return (entry,) * positions


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 20))
def test_the_bound_of_an_outputs_size_holds(tokens, positions, top):
    output = RequestOutput(
        "r", 0, (2**31 - 1,) * tokens, prompt_of(tokens, top), prompt_of(positions, top), cached_tokens=9
    )
    message = replica_pb2.Step()
    add_to_output(message.outputs.add(id=2**40, choice=7), output)
    assert message.ByteSize() <= size_bound(output)


def test_outputs_beyond_the_size_of_a_message_take_several():
    """Echo with log probabilities over long prompts, gathered while a gateway accepts nothing."""
    limit, requests, positions = 2**18, 5, 9000
    outbox = Outbox(7, state(), max_output_bytes=limit)
    outbox.add_events(stored(1, 2), 2)
    for request_id in range(requests):
        for token in range(3):
            entries = prompt_of(positions, 3)[: positions if token == 0 else 0]
            outbox.add_output(request_id, RequestOutput("r", 0, (token,), prompt_logprobs=entries))
    outbox.set_state(state(2))
    messages = outbox.take()
    assert [message.step.seq for message in messages] == list(range(1, len(messages) + 1))
    assert [len(message.step.events) for message in messages] == [1] + [0] * (len(messages) - 1)
    assert {message.step.n_blocks for message in messages} == {2}
    found: dict[int, list[int]] = {}
    for message in messages:
        assert message.ByteSize() < limit + 8192 * 5 * 24
        for output in message.step.outputs:
            count, tokens = found.setdefault(output.id, [0, 0])
            assert not (len(output.prompt_logprobs) and tokens), "prompt positions come before the first token"
            found[output.id] = [count + len(output.prompt_logprobs), tokens + len(output.token_ids)]
    assert found == {request_id: [positions, 3] for request_id in range(requests)}


def test_an_error_names_the_problem():
    outbox = Outbox(7, state())
    outbox.add_output(3, RequestOutput("r", 0, (), finish_reason=FinishReason.ERROR, error=EngineFailure("broken")))
    (message,) = outbox.take()
    (output,) = message.step.outputs
    assert output.finish_reason == sampling_pb2.FINISH_REASON_ERROR
    assert (output.error.kind, output.error.message) == ("EngineFailure", "broken")


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 3), st.integers(0, 2), st.lists(st.integers(0, 99), max_size=3)),
            st.just("take"),
        )
    )
)
def test_no_token_is_lost_repeated_or_moved_however_steps_fall_together(actions):
    outbox = Outbox(7, state())
    sent: dict[tuple[int, int], list[int]] = {}
    arrived: dict[tuple[int, int], list[int]] = {}

    def take() -> None:
        for message in outbox.take():
            for output in message.step.outputs:
                arrived.setdefault((output.id, output.choice), []).extend(output.token_ids)

    for action in actions:
        if action == "take":
            take()
        else:
            request_id, choice, tokens = action
            sent.setdefault((request_id, choice), []).extend(tokens)
            outbox.add_output(request_id, RequestOutput("r", choice, tuple(tokens)))
    take()
    assert arrived == sent


def test_steps_are_numbered_and_carry_the_newest_state():
    outbox = Outbox(7, state(1))
    outbox.set_state(state(2))
    outbox.set_state(state(3))
    (first,) = outbox.take()
    (second,) = outbox.take()
    assert (first.step.seq, second.step.seq) == (1, 2)
    assert {first.step.epoch, second.step.epoch} == {7}
    assert first.step.n_blocks == second.step.n_blocks == 3
    assert first.step.load.num_requests_running == 3
    assert first.step.digest.xor == 3


def test_events_beyond_the_bound_are_dropped_and_reported_as_lost():
    outbox = Outbox(7, state(), max_pending_hashes=3)
    outbox.add_events(stored(1, 2), 2)
    outbox.add_events(stored(3, 4), 2)
    (message,) = outbox.take()
    assert message.step.events_lost
    assert not message.step.events
    outbox.add_events(stored(5), 1)
    (message,) = outbox.take()
    assert message.step.events_lost
    assert not message.step.events
    outbox.set_snapshot([1, 2, 3, 4, 5])
    outbox.add_events(stored(6), 1)
    snapshot, step = outbox.take()
    assert list(snapshot.snapshot.hashes) == [1, 2, 3, 4, 5]
    assert not step.step.events_lost
    assert [list(event.stored.hashes) for event in step.step.events] == [[6]]


def test_a_snapshot_replaces_earlier_events_and_precedes_the_step():
    outbox = Outbox(7, state())
    outbox.take()
    outbox.add_events(stored(1), 1)
    outbox.set_state(state(1))
    outbox.set_snapshot([1])
    snapshot, step = outbox.take()
    assert (snapshot.snapshot.epoch, snapshot.snapshot.seq, snapshot.snapshot.digest.xor) == (7, 1, 1)
    assert (step.step.seq, list(step.step.events)) == (2, [])


def test_outputs_survive_a_loss_of_events():
    outbox = Outbox(7, state(), max_pending_hashes=0)
    outbox.add_output(1, RequestOutput("r", 0, (5,)))
    outbox.add_events(stored(1), 1)
    outbox.add_output(1, RequestOutput("r", 0, (6,)))
    (message,) = outbox.take()
    assert list(message.step.outputs[0].token_ids) == [5, 6]
