import random

from octavo_api.v1 import replica_pb2
from octavo_router.routing.replica_load import DEFAULT_PREFILL_TOKENS_PER_S, FleetRates, ReplicaLoad


def report(steps=0, **fields):
    return replica_pb2.Load(steps_total=steps, **fields)


def test_a_reservation_counts_until_the_report_contains_it():
    load = ReplicaLoad(FleetRates())
    load.update(report(5, waiting_uncached_tokens=100, num_requests_running=2, kv_blocks=50, kv_blocks_pinned=10))
    load.reserve(1, uncached_tokens=40, blocks=3)
    view = load.view(trusted=True)
    assert (view.queued_tokens, view.num_requests, view.kv_blocks_used) == (140, 3, 13)
    load.update(report(6, waiting_uncached_tokens=100, num_requests_running=2))
    assert load.view(trusted=True).queued_tokens == 140
    load.update(report(7, waiting_uncached_tokens=140, num_requests_running=2, num_requests_waiting=1))
    assert load.view(trusted=True).queued_tokens == 140
    assert load.num_unreported == 0
    assert load.num_reservations == 1


def test_the_first_output_ends_a_reservation_on_top():
    load = ReplicaLoad(FleetRates())
    load.update(report())
    load.reserve(1, uncached_tokens=40, blocks=3)
    load.mark_started(1)
    assert load.view(trusted=True).queued_tokens == 0


def test_an_unknown_load_counts_the_requests_of_this_router():
    load = ReplicaLoad(FleetRates())
    load.update(report(9, waiting_uncached_tokens=7000))
    load.reserve(1, uncached_tokens=40, blocks=3)
    load.reserve(2, uncached_tokens=60, blocks=4)
    load.mark_started(1)
    view = load.view(trusted=False)
    assert not view.known
    assert (view.queued_tokens, view.num_requests, view.kv_blocks_used) == (60, 2, 7)
    load.forget()
    assert not load.view(trusted=True).known


def test_a_replica_without_measurements_counts_like_the_others():
    fleet = FleetRates()
    new, old = ReplicaLoad(fleet), ReplicaLoad(fleet)
    new.update(report())
    assert new.view(trusted=True).prefill_tokens_per_s == DEFAULT_PREFILL_TOKENS_PER_S
    old.update(report(prefill_tokens_per_s=4000, decode_step_s=0.02))
    view = new.view(trusted=True)
    assert (view.prefill_tokens_per_s, view.decode_step_s) == (4000, 0.02)


def test_in_any_order_of_events_no_reservation_is_left():
    rng = random.Random(3)
    load = ReplicaLoad(FleetRates())
    open_requests = set()
    for request in range(2000):
        action = rng.random()
        if action < 0.4:
            load.reserve(request, uncached_tokens=rng.randint(0, 99), blocks=rng.randint(0, 9))
            open_requests.add(request)
        elif action < 0.6:
            load.mark_started(rng.randrange(request + 1))
        elif action < 0.8 and open_requests:
            done = rng.choice(sorted(open_requests))
            load.release(done)
            load.release(done)
            open_requests.discard(done)
        elif action < 0.95:
            load.update(report(request))
        else:
            load.forget()
        for trusted in (True, False):
            view = load.view(trusted=trusted)
            assert min(view.queued_tokens, view.num_requests, view.kv_blocks_used) >= 0
        assert load.num_reservations == len(open_requests)
    for request in open_requests:
        load.release(request)
    assert load.num_reservations == load.num_unreported == 0
    assert load.view(trusted=False).num_requests == 0
