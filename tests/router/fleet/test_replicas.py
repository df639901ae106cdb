"""Knowledge of the pool about its replicas (new, removed, silent, faulty), and its effect on requests."""

import asyncio
import random
import time

import grpc
import pytest

from octavo_api.errors import NoReplica, ReplicaLost
from octavo_api.v1 import replica_pb2
from octavo_router.fleet.attempt import Attempt
from octavo_router.fleet.link import ReplicaLink
from octavo_router.fleet.replica_status import ReplicaAddress, ReplicaState, changes
from octavo_router.routing import feed
from octavo_router.routing.route import Reason
from octavo_testing.router.fake_replica import never


def status(fleet, name):
    return next(each for each in fleet.pool.replicas() if each.name == name)


async def test_a_conversation_stays_where_its_prefix_is(fleet):
    await fleet.start("a", "b", "c", "d")
    prompt = list(range(100))
    _, first = await fleet.ask(fleet.request(prompt))
    await fleet.until(lambda: status(fleet, first.replica).cached_keys == 6)
    for turn in range(1, 5):
        _, route = await fleet.ask(fleet.request(prompt + list(range(20 * turn))))
        assert route.replica == first.replica
        assert route.reason is Reason.HIT
        assert route.predicted_cached_tokens >= 96
    assert fleet.recorder.routes[-1] is route
    assert len(fleet.recorder.predictions) == 5


async def test_a_burst_with_one_new_prefix_meets_at_few_replicas(fleet):
    replicas = await fleet.start("a", "b", "c", "d")
    for replica in replicas:
        replica.step_s = 0.02
    shared = list(range(640))
    asked = [fleet.ask(fleet.request([*shared, *([number] * 20)])) for number in range(12)]
    routes = [route for _, route in await asyncio.gather(*asked)]
    assert len({route.replica for route in routes}) <= 2
    assert {route.reason for route in routes[1:]} <= {Reason.PREDICTED, Reason.SPILL, Reason.HIT}


async def test_salts_do_not_share_prefixes(fleet):
    await fleet.start("a")
    await fleet.ask(fleet.request(100, salt="one"))
    await fleet.until(lambda: status(fleet, "a").cached_keys == 6)
    _, route = await fleet.ask(fleet.request(100, salt="two"))
    assert (route.reason, route.predicted_cached_tokens) == (Reason.COLD, 0)


async def test_the_secret_is_sent_and_a_wrong_one_is_reported(fleet):
    a, b = fleet.create("a"), fleet.create("b")
    a.secret, b.secret = "right", "other"
    await fleet.start("a", "b", secret="right", live=False)
    await fleet.until(lambda: status(fleet, "a").state == "live")
    await fleet.until(lambda: "UNAUTHENTICATED" in status(fleet, "b").detail)
    assert not status(fleet, "b").routable
    assert (await fleet.ask())[1].replica == "a"


async def test_a_replica_with_another_protocol_version_is_not_used(fleet):
    a = fleet.create("a")
    a.version = 99
    await fleet.start("a", live=False)
    await fleet.until(lambda: "version" in status(fleet, "a").detail)
    with pytest.raises(NoReplica):
        await fleet.ask()


async def test_a_replica_that_returns_is_connected_again(fleet):
    (a,) = await fleet.start("a")
    await fleet.ask(fleet.request(100))
    await fleet.until(lambda: status(fleet, "a").cached_keys == 6)
    await a.die()
    await fleet.until(lambda: status(fleet, "a").state == "connecting")
    a.epoch += 1000
    a.held = set()
    await a.start(a.port)
    await fleet.until(lambda: status(fleet, "a").state == "live")
    assert status(fleet, "a").cached_keys == 0
    assert (await fleet.ask(fleet.request(100)))[1].reason is Reason.COLD


async def test_a_removed_replica_finishes_its_requests_and_gets_no_others(fleet):
    a, b = await fleet.start("a", "b")
    a.step_s = b.step_s = 0.05
    stream = await fleet.pool.open(fleet.request())
    leaving, staying = (a, b) if stream.route.replica == "a" else (b, a)
    fleet.pool.update_replicas([staying.address])
    assert [each.name for each in fleet.pool.replicas()] == [staying.name]
    assert fleet.recorder.gone == [leaving.name]
    assert {(await fleet.ask())[1].replica for _ in range(3)} == {staying.name}
    assert (await fleet.read(stream))[0] == {0: [0, 1, 2]}
    await fleet.until(lambda: not leaving.gateways)


async def test_a_removed_replica_may_run_longer_than_silence_is_allowed(fleet, monkeypatch):
    monkeypatch.setattr("octavo_router.fleet.members.WATCH_INTERVAL_S", 0.02)
    monkeypatch.setattr(feed, "LOST_S", 0.3)
    (a,) = await fleet.start("a")
    a.tokens, a.step_s = 10, 0.07
    stream = await fleet.pool.open(fleet.request())
    fleet.pool.update_replicas([])
    assert (await fleet.read(stream))[0] == {0: list(range(10))}


async def test_a_new_address_under_the_same_name_is_a_new_replica(fleet):
    (a,) = await fleet.start("a")
    other = fleet.create("a")
    await other.start()
    fleet.pool.update_replicas([other.address])
    await fleet.until(lambda: status(fleet, "a").state == "live")
    await fleet.ask()
    assert (len(a.submits), len(other.submits)) == (0, 1)
    await fleet.until(lambda: not a.gateways)
    await a.die()


async def test_a_draining_replica_gets_no_new_requests(fleet):
    a, b = await fleet.start("a", "b")
    a.load.draining = True
    await fleet.until(lambda: status(fleet, "a").state == "draining")
    assert {(await fleet.ask(fleet.request(tokens)))[1].replica for tokens in (20, 40, 60, 80)} == {"b"}
    b.load.draining = True
    await fleet.until(lambda: status(fleet, "b").state == "draining")
    with pytest.raises(NoReplica, match="a: draining, b: draining"):
        await fleet.ask()


async def test_silence_makes_a_replica_untrusted_and_then_lost(fleet, monkeypatch):
    monkeypatch.setattr(feed, "UNTRUSTED_S", 0.3)
    monkeypatch.setattr(feed, "LOST_S", 0.9)
    a, b = await fleet.start("a", "b")
    a.answer = b.answer = never
    stream = await fleet.pool.open(fleet.request())
    silent, other = (a, b) if stream.route.replica == "a" else (b, a)
    silent.beats = False
    other.answer = None
    await fleet.until(lambda: status(fleet, silent.name).state == "untrusted")
    assert status(fleet, silent.name).load is None
    assert status(fleet, silent.name).routable
    assert (await fleet.ask())[1].replica == other.name
    tokens, route = await fleet.read(stream)
    assert (tokens, route.replica, route.reason) == ({0: [0, 1, 2]}, other.name, Reason.RETRY)


async def test_the_request_of_a_silent_replica_ends_as_lost(fleet, monkeypatch):
    monkeypatch.setattr("octavo_router.fleet.members.WATCH_INTERVAL_S", 0.02)
    monkeypatch.setattr(feed, "LOST_S", 0.4)
    (a,) = await fleet.start("a")
    a.tokens, a.step_s = 3, 0.0

    async def one(gateway, submit):
        gateway.send(outputs=[replica_pb2.Output(id=submit.id, token_ids=[1])])

    a.answer = one
    stream = await fleet.pool.open(fleet.request())
    await anext(stream)
    a.beats = False
    with pytest.raises(ReplicaLost):
        await anext(stream)


async def test_after_a_blocked_event_loop_replicas_are_not_silent(fleet, monkeypatch):
    monkeypatch.setattr("octavo_router.fleet.members.WATCH_INTERVAL_S", 0.02)
    monkeypatch.setattr(feed, "UNTRUSTED_S", 0.2)
    monkeypatch.setattr(feed, "LOST_S", 0.4)
    (a,) = await fleet.start("a")
    epoch = len(fleet.recorder.states)
    time.sleep(1.0)  # noqa: ASYNC251 - the blocking is the point
    await asyncio.sleep(0.2)
    assert "connecting" not in [state for _, state in fleet.recorder.states[epoch:]]
    assert len(a.gateways) == 1


@pytest.mark.parametrize("fault", ["dropped step", "wrong digest", "unknown block", "orphan", "events lost"])
async def test_faults_in_the_events_are_repaired_and_requests_continue(fleet, fault):
    (a,) = await fleet.start("a")
    a.store(1, 2, 3)
    await fleet.until(lambda: status(fleet, "a").cached_keys == 3)
    match fault:
        case "dropped step":
            a.drop_steps = 1
            a.store(4, parent=3)
        case "wrong digest":
            a.lie = 5
            await fleet.until(lambda: feed.ResyncReason.DIGEST in fleet.recorder.resyncs)
            a.lie = 0
        case "unknown block":
            a.step(events=[replica_pb2.CacheEvent(removed=replica_pb2.Removed(hashes=[77]))])
        case "orphan":
            a.step(events=[replica_pb2.CacheEvent(stored=replica_pb2.Stored(parent=77, hashes=[78]))])
        case "events lost":
            a.held |= {4, 5}
            a.step(events_lost=True)
    assert (await fleet.ask(fleet.request(10)))[0] == {0: [0, 1, 2]}
    await fleet.until(lambda: status(fleet, "a").state == "live" and a.num_snapshots >= 2)
    await fleet.until(lambda: status(fleet, "a").cached_keys == len(a.held))
    assert ("a", ReplicaState.RESYNCING) in fleet.recorder.states
    assert len(fleet.recorder.resyncs) >= 2


async def test_a_missing_snapshot_stops_no_request(fleet):
    a = fleet.create("a")
    a.snapshots = False
    await fleet.start("a", live=False)
    await fleet.until(lambda: status(fleet, "a").state == "syncing")
    assert (await fleet.ask())[0] == {0: [0, 1, 2]}


async def test_an_output_of_an_unknown_request_is_ignored(fleet):
    (a,) = await fleet.start("a")
    a.step(outputs=[replica_pb2.Output(id=12345, token_ids=[1])])
    assert (await fleet.ask())[0] == {0: [0, 1, 2]}


async def test_a_request_that_fails_on_its_output_does_not_end_the_link(fleet):
    (a,) = await fleet.start("a")
    a.answer = never
    broken = await fleet.pool.open(fleet.request())
    await fleet.until(lambda: a.submits)
    fleet.pool.members["a"]._attempts[a.submits[0].id] = Broken()
    a.step(outputs=[replica_pb2.Output(id=a.submits[0].id, token_ids=[1])])
    a.answer = None
    assert (await fleet.ask())[0] == {0: [0, 1, 2]}
    assert len(a.gateways) == 1
    await broken.aclose()


class Broken(Attempt):
    def __init__(self):
        super().__init__(1, on_start=lambda output: None, on_end=lambda: None)

    def deliver(self, output):
        raise RuntimeError("broken")


def test_replicas_differ_by_name_and_address():
    a, b, c = (ReplicaAddress(name, "127.0.0.1", port) for name, port in (("a", 1), ("b", 2), ("c", 3)))
    moved = ReplicaAddress("a", "127.0.0.1", 9)
    difference = changes({"a": a, "b": b}, [moved, b, c])
    assert difference.removed == (a,)
    assert difference.added == (moved, c)
    with pytest.raises(ValueError, match=r"replica a: got 127.0.0.1:1 and 127.0.0.1:9"):
        changes({}, [a, moved])
    assert ReplicaAddress("v6", "::1", 5).target == "[::1]:5"


@pytest.mark.parametrize("seed", range(3))
async def test_after_random_faults_nothing_is_reserved_or_in_flight(fleet, seed):
    rng = random.Random(seed)
    names = ["a", "b", "c"]
    await fleet.start(*names, max_inflight_requests=8, max_queued_requests=6)
    for replica in fleet.replicas.values():
        replica.step_s = 0.004
    ends = []

    async def client():
        tokens = [rng.randrange(4)] * rng.randint(1, 200)
        deadline = asyncio.get_running_loop().time() + rng.choice([0.02, 5, 5])
        stream = None
        try:
            stream = await fleet.pool.open(
                fleet.request(
                    tokens,
                    n=rng.randint(1, 3),
                    deadline=deadline,
                    priority=rng.randint(0, 2),
                    buffered=rng.random() < 0.5,
                )
            )
            async for _ in stream:
                chance = rng.random()
                if chance < 0.1:
                    stream.abort_choice(rng.randint(0, 2))
                elif chance < 0.15:
                    break
                elif chance < 0.2:
                    await asyncio.sleep(0.03)
            ends.append("ended")
        except Exception as error:
            ends.append(type(error).__name__)
        finally:
            if stream is not None:
                await stream.aclose()

    clients = []
    for _ in range(120):
        clients.append(asyncio.create_task(client()))
        await asyncio.sleep(0.004)
        chance = rng.random()
        victim = fleet.replicas[rng.choice(names)]
        if chance < 0.1:
            rng.choice(clients).cancel()
        elif chance < 0.13:
            await victim.die()
            victim.epoch += 10_000
            victim.held = set()
            await victim.start(victim.port)
        elif chance < 0.16:
            victim.drop_steps = 1
        elif chance < 0.19:
            fleet.pool.update_replicas(fleet.replicas[name].address for name in rng.sample(names, 2))
        elif chance < 0.22:
            victim.refuse(rng.choice(["QueueFull", "Draining", "InvalidRequest"]))
        elif chance < 0.3:
            victim.answer = None
        else:
            fleet.pool.update_replicas(each.address for each in fleet.replicas.values())
    await asyncio.gather(*clients, return_exceptions=True)
    allowed = {
        "ended",
        "ContextLengthExceeded",
        "DeadlineExceeded",
        "Draining",
        "InvalidRequest",
        "NoReplica",
        "QueueFull",
        "ReplicaLost",
    }
    assert set(ends) <= allowed
    assert ends.count("ended") > 10
    assert fleet.at_rest()
    await fleet.until(lambda: all(each.state == "live" for each in fleet.pool.replicas()))
    for each in fleet.pool.replicas():
        replica = fleet.replicas[each.name]
        await fleet.until(lambda replica=replica: status(fleet, replica.name).cached_keys == len(replica.held))


async def test_the_reason_for_a_failing_link_is_logged_once(fleet, caplog):
    a = fleet.create("a")
    a.secret = "other"
    await fleet.start("a", secret="right", live=False)
    await fleet.until(lambda: a.num_refused >= 3)
    told = [record.getMessage() for record in caplog.records if "UNAUTHENTICATED" in record.getMessage()]
    assert told == ["link to a: UNAUTHENTICATED: secret"]


async def test_closing_ends_a_link_that_is_rejected_at_that_moment(fleet, monkeypatch):
    """Cancel a call of gRPC that already has a status. It raises the status instead of the cancellation."""
    reading = asyncio.Event()

    async def refused(call):
        reading.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAUTHENTICATED, None, None, "secret") from None

    monkeypatch.setattr(ReplicaLink, "_read", staticmethod(refused))
    await fleet.start("a", live=False)
    await asyncio.wait_for(reading.wait(), 20)
    await asyncio.wait_for(fleet.pool.close(), 5)
