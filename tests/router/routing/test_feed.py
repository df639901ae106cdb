import itertools
import random

import pytest

from octavo_api.v1 import replica_pb2
from octavo_router.routing.feed import FeedState, ResyncReason


def stored(*hashes, parent=None):
    message = replica_pb2.Stored(hashes=hashes)
    if parent is not None:
        message.parent = parent
    return replica_pb2.CacheEvent(stored=message)


def removed(*hashes):
    return replica_pb2.CacheEvent(removed=replica_pb2.Removed(hashes=hashes))


def test_a_new_stream_requests_one_snapshot(scene):
    scene.engine.store(5)
    assert scene.feed.state is FeedState.CONNECTING
    assert not scene.feed.snapshot_due(scene.now)
    scene.feed.connected(scene.engine.hello(), scene.now)
    assert scene.feed.snapshot_due(scene.now)
    assert not scene.feed.snapshot_due(scene.now)
    assert scene.feed.state is FeedState.SNAPSHOT
    scene.feed.snapshot(scene.engine.snapshot(), scene.now)
    assert scene.feed.state is FeedState.LIVE
    assert scene.held() == scene.engine.held


def test_steps_apply_in_order_and_a_cleared_cache_is_empty_at_once(scene):
    scene.go_live()
    for length in (3, 4, 5):
        scene.engine.store(length)
        scene.step()
    assert scene.held() == scene.engine.held
    scene.engine.evict()
    scene.step()
    assert scene.held() == scene.engine.held
    scene.engine.clear()
    scene.step()
    assert scene.index.num_held(scene.feed.slot) == 0
    assert scene.reasons == [ResyncReason.CONNECTED]


def test_steps_before_and_after_the_snapshot_apply_once(scene):
    scene.engine.store(3)
    scene.feed.connected(scene.engine.hello(), scene.now)
    scene.feed.snapshot_due(scene.now)
    scene.step()
    scene.engine.store(3)
    in_snapshot = scene.engine.step()
    snapshot = scene.engine.snapshot()
    scene.step(in_snapshot)
    scene.engine.store(3)
    scene.step()
    scene.feed.snapshot(snapshot, scene.now)
    assert scene.feed.state is FeedState.LIVE
    assert scene.held() == scene.engine.held


def test_steps_that_a_snapshot_contains_are_skipped(scene):
    scene.feed.connected(scene.engine.hello(), scene.now)
    scene.feed.snapshot_due(scene.now)
    scene.engine.store(3)
    late = scene.engine.step()
    scene.feed.snapshot(scene.engine.snapshot(), scene.now)
    scene.step(late)
    scene.engine.store(2)
    scene.step()
    assert scene.feed.state is FeedState.LIVE
    assert scene.held() == scene.engine.held


@pytest.mark.parametrize(
    ("reason", "spoil"),
    [
        (ResyncReason.SEQUENCE_GAP, lambda engine: [engine.step(), engine.step()][1]),
        (ResyncReason.EVENTS_LOST, lambda engine: (engine.store(2), engine.drop_events(), engine.step())[2]),
        (ResyncReason.ORPHAN, lambda engine: _with(engine.step(), stored(5, parent=4))),
        (ResyncReason.UNKNOWN_BLOCK, lambda engine: _with(engine.step(), removed(4))),
        (ResyncReason.COUNT, lambda engine: _with(engine.step(), stored(5))),
        (ResyncReason.DIGEST, lambda engine: _set(engine.step(), digest=replica_pb2.Digest(xor=1))),
        (ResyncReason.CAPACITY, lambda engine: _with(engine.step(), stored(*range(1, 300)))),
        (ResyncReason.MALFORMED, lambda engine: _with(engine.step(), replica_pb2.CacheEvent())),
        (ResyncReason.EPOCH, lambda engine: (engine.restart(), engine.store(2), engine.step())[2]),
    ],
)
def test_every_fault_has_a_reason_and_is_repaired_by_a_snapshot(scene, reason, spoil):
    scene.engine.store(5)
    scene.go_live()
    scene.step(spoil(scene.engine))
    assert scene.feed.state is FeedState.GAP
    assert scene.reasons == [ResyncReason.CONNECTED, reason]
    assert scene.feed.resyncs[reason] == 1
    scene.now += 0.2
    assert scene.feed.snapshot_due(scene.now)
    scene.feed.snapshot(scene.engine.snapshot(), scene.now)
    scene.engine.store(4)
    scene.step()
    assert scene.feed.state is FeedState.LIVE
    assert scene.held() == scene.engine.held


def _with(step, event):
    step.events.append(event)
    return step


def _set(step, **fields):
    step.MergeFrom(replica_pb2.Step(**fields))
    return step


def test_keys_count_half_while_resyncing_for_five_seconds(scene):
    scene.engine.store(4)
    scene.go_live()
    assert scene.feed.confidence == 1.0
    scene.engine.step()
    scene.step()
    assert scene.feed.state is FeedState.GAP
    assert scene.feed.confidence == 0.5
    for _ in range(9):
        scene.now += 0.5
        scene.step()
    assert scene.held() == scene.engine.held
    scene.now += 0.6
    scene.step()
    assert scene.held() == set()


def test_silence_hides_the_keys_and_later_loses_the_replica(scene):
    scene.engine.store(4)
    scene.go_live()
    scene.now += 0.9
    scene.feed.tick(scene.now)
    assert scene.feed.is_trusted(scene.now)
    assert scene.held() == scene.engine.held
    scene.now += 0.2
    scene.feed.tick(scene.now)
    assert not scene.feed.is_trusted(scene.now)
    assert not scene.feed.is_lost(scene.now)
    assert scene.held() == set()
    scene.step()
    assert scene.feed.is_trusted(scene.now)
    assert scene.held() == scene.engine.held
    scene.now += 3.1
    assert scene.feed.is_lost(scene.now)


def test_only_the_same_engine_keeps_its_keys_on_a_new_stream(scene):
    scene.engine.store(4)
    scene.go_live()
    scene.feed.disconnected(scene.now)
    assert scene.held() == set()
    scene.now += 1
    scene.engine.seq = 0
    scene.feed.connected(scene.engine.hello(), scene.now)
    assert scene.held() == scene.engine.held
    assert scene.feed.confidence == 0.5
    scene.feed.disconnected(scene.now)
    engine = scene.engine
    before = dict(engine.parent)
    engine.restart()
    scene.feed.connected(engine.hello(), scene.now)
    engine.parent = before
    assert scene.held() == set()


def test_back_off_grows_with_wrong_digests_and_resets_when_calm(scene):
    scene.go_live()
    waits = []
    for _ in range(10):
        scene.step(_set(scene.engine.step(), digest=replica_pb2.Digest(xor=1)))
        asked = scene.now
        while not scene.feed.snapshot_due(scene.now):
            scene.now += 0.01
        waits.append(scene.now - asked)
        scene.feed.snapshot(scene.engine.snapshot(), scene.now)
    assert waits[0] < 0.1
    assert all(later > 1.5 * sooner for sooner, later in itertools.pairwise(waits[:7]))
    assert 4.9 < waits[-1] < 5.1
    for _ in range(50):
        scene.now += 0.25
        scene.step()
    scene.engine.step()
    scene.step()
    scene.now += 0.1
    assert scene.feed.snapshot_due(scene.now)


def test_a_missing_snapshot_is_requested_again(scene):
    scene.feed.connected(scene.engine.hello(), scene.now)
    assert scene.feed.snapshot_due(scene.now)
    scene.now += 5.1
    assert not scene.feed.snapshot_due(scene.now)
    assert scene.reasons[-1] is ResyncReason.SNAPSHOT_TIMEOUT
    scene.now += 0.2
    assert scene.feed.snapshot_due(scene.now)


def test_steps_that_wait_for_a_snapshot_are_bounded(scene):
    scene.feed.connected(scene.engine.hello(), scene.now)
    scene.feed.snapshot_due(scene.now)
    for _ in range(1025):
        scene.step()
    assert scene.reasons[-1] is ResyncReason.BACKLOG


def test_a_snapshot_without_a_request_is_ignored(scene):
    scene.engine.store(4)
    scene.go_live()
    scene.feed.snapshot(replica_pb2.Snapshot(epoch=scene.engine.epoch, seq=99), scene.now)
    scene.engine.store(1)
    scene.step()
    assert scene.held() == scene.engine.held


@pytest.mark.parametrize("seed", range(25))
def test_after_losses_and_restarts_the_index_equals_the_truth(make_scene, seed):
    rng = random.Random(seed)
    scene = make_scene(seed)
    engine, feed = scene.engine, scene.feed
    feed.connected(engine.hello(), scene.now)
    pending = []
    for _ in range(400):
        scene.now += rng.choice([0.005, 0.05, 0.2])
        chance = rng.random()
        if chance < 0.5:
            engine.store(rng.randint(1, 12))
        elif chance < 0.85:
            engine.evict()
        elif chance < 0.87:
            engine.clear()
        elif chance < 0.9:
            engine.drop_events()
        elif chance < 0.91:
            engine.restart()
            pending.clear()
            if rng.random() < 0.5:
                feed.disconnected(scene.now)
                feed.connected(engine.hello(), scene.now)
        if rng.random() < 0.1:
            engine.step()
        else:
            scene.step()
            assert feed.state is not FeedState.LIVE or scene.equals_truth()
        if feed.snapshot_due(scene.now):
            pending.append(engine)
        if pending and rng.random() < 0.5:
            pending.pop(0)
            feed.snapshot(engine.snapshot(), scene.now)
        scene.index.sweep(rng.choice([0, 3, 50]))
    for _ in range(200):
        scene.now += 0.1
        scene.step()
        if feed.snapshot_due(scene.now):
            feed.snapshot(engine.snapshot(), scene.now)
    assert feed.state is FeedState.LIVE
    assert scene.equals_truth()
    assert scene.held() == engine.held
    assert scene.index.path_gaps == 0
    while scene.index.sweep(1000):
        pass
    assert scene.index.num_keys == len(engine.held)
