from hypothesis import given
from hypothesis import strategies as st

from octavo_router.routing.index import Hit
from octavo_router.routing.overlay import Overlay


def test_a_prediction_covers_shared_prefixes_at_sparse_positions():
    overlay = Overlay()
    overlay.record(range(100, 150), 0, slot=3, now=0.0, ttl=2.0)
    assert overlay.lookup(range(100, 150), 1.0) == [Hit(8, 50)]
    assert overlay.lookup(range(100, 143), 1.0) == [Hit(8, 40)]
    assert overlay.lookup([*range(100, 105), 7, 7, 7], 1.0) == [Hit(8, 5)]
    assert overlay.lookup([7, 8], 1.0) == []


@given(length=st.integers(1, 3000), shared=st.integers(1, 3000))
def test_a_shared_prefix_is_known_to_an_eighth_in_few_entries(length, shared):
    shared = min(shared, length)
    overlay = Overlay()
    overlay.record(range(length), 0, slot=0, now=0.0, ttl=2.0)
    ((_, depth),) = overlay.lookup([*range(shared), *range(9000, 9100)], 1.0)
    assert shared * 7 / 8 <= depth <= shared
    assert len(overlay) <= 16 + 8 * max(0, length.bit_length() - 4) + 1


def test_each_slot_comes_once_with_its_deepest_prediction():
    overlay = Overlay()
    overlay.record(range(64), 0, slot=0, now=0.0, ttl=2.0)
    overlay.record(range(16), 0, slot=1, now=0.0, ttl=2.0)
    assert overlay.lookup(range(64), 1.0) == [Hit(1, 64), Hit(2, 16)]


def test_held_keys_are_not_predicted():
    overlay = Overlay()
    overlay.record(range(64), 40, slot=0, now=0.0, ttl=2.0)
    assert overlay.lookup(range(40), 1.0) == []
    assert overlay.lookup(range(64), 1.0) == [Hit(1, 64)]


def test_predictions_expire_and_are_forgotten():
    overlay = Overlay()
    overlay.record(range(64), 0, slot=0, now=0.0, ttl=2.0)
    assert overlay.lookup(range(64), 2.0) == []
    overlay.record([900], 0, slot=1, now=5.0, ttl=2.0)
    assert len(overlay) == 1


def test_a_removed_replica_loses_its_predictions():
    overlay = Overlay()
    overlay.record(range(64), 0, slot=0, now=0.0, ttl=2.0)
    overlay.record(range(64), 0, slot=1, now=0.0, ttl=2.0)
    overlay.forget(0)
    assert overlay.lookup(range(64), 1.0) == [Hit(2, 64)]
    overlay.forget(1)
    assert len(overlay) == 0
