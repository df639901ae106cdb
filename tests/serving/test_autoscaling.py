from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_serving.autoscaling import ACTIVE, FORGET_S, SHARE, desired_replicas, policy, share

loads = st.lists(st.floats(0, 1e6), max_size=16)
unknowns = st.integers(0, 16)


@given(loads, unknowns, st.floats(0.1, 1e12), st.integers(0, 16), st.integers(0, 16))
def test_the_count_stays_within_its_bounds(load: list[float], unknown: int, target: float, low: int, more: int) -> None:
    count = desired_replicas(load, unknown=unknown, target=target, minimum=low, maximum=low + more)
    assert low <= count <= low + more


@given(loads, unknowns, st.integers(0, 100))
def test_a_fixed_count_is_fixed(load: list[float], unknown: int, count: int) -> None:
    assert desired_replicas(load, unknown=unknown, target=1e12, minimum=count, maximum=count) == count


@given(loads, unknowns)
def test_a_count_of_zero_stays_zero_whatever_still_runs(load: list[float], unknown: int) -> None:
    assert desired_replicas(load, unknown=unknown, target=1e12, minimum=0, maximum=1) == 0


@pytest.mark.parametrize(
    ("load", "unknown", "expected"),
    [
        ([], 0, 0),
        ([0.0], 0, 0),
        ([ACTIVE], 0, 1),
        ([1.0], 0, 1),
        ([1.05], 0, 1),
        ([1.2], 0, 2),
        ([1.0, 1.0, 1.0], 0, 3),
        ([0.0, 0.0], 1, 1),
        ([0.2], 2, 3),
        ([], 3, 3),
        ([30.0], 0, 8),
    ],
)
def test_each_replica_gets_about_its_share_and_silence_is_not_idleness(
    load: list[float], unknown: int, expected: int
) -> None:
    assert desired_replicas(load, unknown=unknown, target=1, minimum=0, maximum=8) == expected


def used(**load: Any) -> float:
    idle = {"requests": 0, "blocks_held": 0, "blocks": 100, "active": False}
    return share(target_requests=8, target_cache_percent=80, **(idle | load))


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        ({}, 0.0),
        ({"requests": 8}, 1.0),
        ({"requests": 4, "blocks_held": 80}, 1.0),
        ({"requests": 16, "blocks_held": 80}, 2.0),
        ({"blocks": 0}, 0.0),
        ({"active": True}, ACTIVE),
        ({"active": True, "requests": 4}, 0.5),
    ],
)
def test_a_share_is_of_the_target_that_is_nearer(load: dict[str, Any], expected: float) -> None:
    assert used(**load) == pytest.approx(expected)


def context(**changes: Any) -> SimpleNamespace:
    values: dict[str, Any] = {
        "aggregated_metrics": {SHARE: {"a": 1.0, "b": 1.0}},
        "current_num_replicas": 2,
        "policy_state": {},
        "current_time": 100.0,
        "config": SimpleNamespace(target_ongoing_requests=1),
        "capacity_adjusted_min_replicas": 1,
        "capacity_adjusted_max_replicas": 3,
    }
    return SimpleNamespace(**(values | changes))


def test_serves_context_is_read() -> None:
    assert policy(context())[0] == 2
    assert policy(context(current_num_replicas=3))[0] == 3


def test_before_the_first_report_the_count_stays() -> None:
    assert policy(context(aggregated_metrics=None))[0] == 2


def test_replicas_that_are_not_announced_for_a_moment_count_on() -> None:
    _, state = policy(context())
    gone = {"aggregated_metrics": {}, "current_num_replicas": 0, "policy_state": state}
    count, state = policy(context(**gone, current_time=100 + FORGET_S / 2))
    assert count == 2
    assert policy(context(**{**gone, "policy_state": state}, current_time=100 + FORGET_S))[0] == 1


def test_a_replica_that_is_back_counts_once() -> None:
    _, state = policy(context())
    assert policy(context(policy_state=state, current_time=101.0))[0] == 2
