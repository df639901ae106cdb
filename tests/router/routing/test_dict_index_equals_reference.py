"""DictIndex against ReferenceIndex, on random trees and operations that keep every slot prefix-closed."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_api.blocks import Digest
from octavo_router.routing.index import DictIndex, Hit
from octavo_router.routing.index.reference_index import ReferenceIndex


def random_tree(rng, chains, depth):
    """Return chains that share prefixes: each branches off an earlier one at a random position."""
    tree = [[rng.getrandbits(64) for _ in range(rng.randint(1, depth))]]
    for _ in range(chains - 1):
        parent = rng.choice(tree)
        cut = rng.randint(0, len(parent))
        tree.append(parent[:cut] + [rng.getrandbits(64) for _ in range(rng.randint(1, depth))])
    return tree


def children(tree):
    after = {}
    for chain in tree:
        for before, key in itertools.pairwise(chain):
            after.setdefault(before, set()).add(key)
    return after


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_answer_equals_the_reference(seed):
    rng = random.Random(seed)
    tree = random_tree(rng, chains=rng.randint(1, 8), depth=rng.choice([1, 3, 20]))
    after = children(tree)
    dict_index, model = DictIndex(audit_every=3), ReferenceIndex()
    both = (dict_index, model)
    slots = []
    for _ in range(60):
        action = rng.random()
        if action < 0.15 or not slots:
            added = {index.add_slot() for index in both}
            assert len(added) == 1
            slots.append(added.pop())
            for index in both:
                index.set_live(slots[-1], True)
        elif action < 0.2:
            slot = slots.pop(rng.randrange(len(slots)))
            for index in both:
                index.drop_slot(slot)
        elif action < 0.3:
            budget = rng.randint(0, 10)
            assert dict_index.sweep(budget) == model.sweep(budget)
        elif action < 0.6:
            slot, chain = rng.choice(slots), rng.choice(tree)
            depth = rng.randint(1, len(chain))
            for index in both:
                index.store(slot, chain[:depth])
        elif action < 0.75:
            slot = rng.choice(slots)
            chain = rng.choice(tree)
            leaf = next(
                (
                    key
                    for key in reversed(chain)
                    if model.holds(slot, key) and not any(model.holds(slot, child) for child in after.get(key, ()))
                ),
                rng.getrandbits(64),
            )
            assert dict_index.remove(slot, [leaf]) == model.remove(slot, [leaf])
        elif action < 0.85:
            slot = rng.choice(slots)
            keys = {key for chain in rng.sample(tree, rng.randint(0, len(tree))) for key in chain}
            for index in both:
                index.replace(slot, keys)
        else:
            slot, live = rng.choice(slots), rng.random() < 0.7
            for index in both:
                index.set_live(slot, live)
        for chain in tree:
            assert dict_index.lookup(chain) == model.lookup(chain)
        for slot in slots:
            assert dict_index.digest(slot) == model.digest(slot)
            assert dict_index.num_held(slot) == model.num_held(slot)
    assert dict_index.path_gaps == 0
    assert dict_index.take_suspects() == 0
    while dict_index.sweep(1000):
        model.sweep(1000)
    assert dict_index.num_keys == model.num_keys


@pytest.fixture(params=[DictIndex, ReferenceIndex])
def index(request):
    return request.param()


def test_deepest_first_and_each_slot_once(index):
    a, b, c = (index.add_slot() for _ in range(3))
    for slot, depth in ((a, 5), (b, 2), (c, 2)):
        index.set_live(slot, True)
        index.store(slot, range(100, 100 + depth))
    assert index.lookup(range(100, 110)) == [Hit(1 << a, 5), Hit(1 << b | 1 << c, 2)]
    assert index.lookup([]) == []
    assert index.lookup([1, 2]) == []


def test_a_hidden_slot_is_in_no_answer_and_returns_with_all_keys(index):
    slot = index.add_slot()
    index.store(slot, [1, 2, 3])
    assert index.lookup([1, 2, 3]) == []
    index.set_live(slot, True)
    assert index.lookup([1, 2, 3]) == [Hit(1 << slot, 3)]
    index.set_live(slot, False)
    assert index.lookup([1, 2, 3]) == []


def test_a_dropped_slot_is_reused_only_after_the_sweep(index):
    slot = index.add_slot()
    index.set_live(slot, True)
    index.store(slot, range(10))
    index.drop_slot(slot)
    assert index.lookup(range(10)) == []
    assert index.add_slot() != slot
    assert index.sweep(9) == 9
    assert index.add_slot() != slot
    assert index.sweep(9) == 1
    again = index.add_slot()
    assert again == slot
    index.set_live(again, True)
    assert index.lookup(range(10)) == []
    assert index.num_held(again) == 0


def test_storing_and_removing_twice_changes_nothing(index):
    slot = index.add_slot()
    index.store(slot, [5, 6])
    index.store(slot, [5, 6])
    assert index.digest(slot) == Digest(5 ^ 6, 11)
    assert index.remove(slot, [6, 7]) == 1
    assert index.remove(slot, [6]) == 1
    assert index.digest(slot) == Digest(5, 5)
    assert index.num_held(slot) == 1


def test_the_sum_wraps_at_64_bits(index):
    slot = index.add_slot()
    index.store(slot, [2**64 - 1, 2**64 - 2])
    assert index.digest(slot) == Digest(1, 2**64 - 3)


def test_an_audit_finds_a_hole_and_names_the_slot():
    index = DictIndex(audit_every=1)
    good, bad = index.add_slot(), index.add_slot()
    for slot in (good, bad):
        index.set_live(slot, True)
        index.store(slot, [1, 2, 3, 4])
    index.remove(bad, [2])
    index.lookup([1, 2, 3, 4])
    assert index.path_gaps == 1
    assert index.take_suspects() == 1 << bad
    assert index.take_suspects() == 0


def test_many_slots_share_masks_and_stay_exact():
    index = DictIndex()
    slots = [index.add_slot() for _ in range(200)]
    for slot in slots:
        index.set_live(slot, True)
        index.store(slot, range(1000, 1000 + slot + 1))
    hits = index.lookup(range(1000, 1300))
    assert [hit.depth for hit in hits] == list(range(200, 0, -1))
    assert [hit.mask for hit in hits] == [1 << slot for slot in reversed(slots)]
