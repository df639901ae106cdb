from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.core.state.removable_heap import RemovableHeap

ACTIONS = st.lists(st.tuples(st.sampled_from(["push", "discard", "take"]), st.integers(0, 30)), max_size=200)


@given(ACTIONS)
def test_it_is_a_sorted_set(actions):
    heap, model = RemovableHeap(), set()
    for action, key in actions:
        if action == "push" and key not in model:
            heap.push(key)
            model.add(key)
        elif action == "discard":
            heap.discard(key)
            model.discard(key)
        elif action == "take" and model:
            assert heap.first() == min(model)
            heap.discard(min(model))
            model.remove(min(model))
        assert len(heap) == len(model)
        assert heap.first() == min(model, default=None)


def test_places_of_removed_keys_do_not_accumulate():
    heap = RemovableHeap()
    heap.push(-1)
    for key in range(10_000):
        heap.push(key)
        heap.discard(key)
    assert len(heap._heap) < 50
