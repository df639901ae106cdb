from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_serving.autoscaling import ACTIVE, GRACE_S, SHARE, desired_replicas, policy, share

loads = st.lists(st.floats(0, 1e6), max_size=16)
silences = st.integers(0, 16)


@given(loads, silences, st.floats(0.1, 1e12), st.integers(0, 16), st.integers(0, 16))
def test_the_count_stays_within_its_bounds(load: list[float], silent: int, target: float, low: int, more: int) -> None:
    count = desired_replicas(load, silent=silent, target=target, minimum=low, maximum=low + more)
    assert low <= count <= low + more


@given(loads, silences, st.integers(0, 100))
def test_a_fixed_count_is_fixed(load: list[float], silent: int, count: int) -> None:
    assert desired_replicas(load, silent=silent, target=1e12, minimum=count, maximum=count) == count


@given(loads, silences)
def test_a_count_of_zero_stays_zero_whatever_still_runs(load: list[float], silent: int) -> None:
    assert desired_replicas(load, silent=silent, target=1e12, minimum=0, maximum=1) == 0


@pytest.mark.parametrize(
    ("load", "silent", "expected"),
    [
        ([], 0, 0),
        ([0.0], 0, 0),
        ([ACTIVE], 0, 1),
        ([1.0], 0, 1),
        ([1.05], 0, 1),
        ([1.2], 0, 2),
        ([1.0, 1.0, 1.0], 0, 3),
        ([0.0, 0.0], 1, 3),
        ([0.2], 2, 3),
        ([2.0], 1, 2),
        ([4.0], 1, 4),
        ([], 3, 3),
        ([30.0], 0, 8),
    ],
)
def test_each_replica_gets_about_its_share_and_silence_is_not_idleness(
    load: list[float], silent: int, expected: int
) -> None:
    assert desired_replicas(load, silent=silent, target=1, minimum=0, maximum=8) == expected


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
        "target_num_replicas": 2,
        "policy_state": {},
        "current_time": 100.0,
        "config": SimpleNamespace(target_ongoing_requests=1),
        "capacity_adjusted_min_replicas": 1,
        "capacity_adjusted_max_replicas": 9,
    }
    return SimpleNamespace(**(values | changes))


def test_serves_context_is_read() -> None:
    assert policy(context()) == (2, {})


def test_before_the_first_report_the_count_stays() -> None:
    assert policy(context(aggregated_metrics=None)) == (2, {})


def test_one_more_that_has_not_reported_asks_for_no_other() -> None:
    load = {SHARE: {"a": 2.0}}
    assert policy(context(aggregated_metrics=load))[0] == 2


def test_replicas_that_apply_a_configuration_are_missed_for_a_moment_only() -> None:
    """Serve forgets the policy's state at each change of configuration, so the first call has none."""
    idle = {"aggregated_metrics": {SHARE: {"a": 0.0}}, "current_num_replicas": 1, "target_num_replicas": 3}
    count, state = policy(context(**idle))
    assert count == 3
    assert policy(context(**idle, policy_state=state, current_time=100 + GRACE_S / 2))[0] == 3
    count, state = policy(context(**idle, policy_state=state, current_time=100 + GRACE_S))
    assert count == 1
    assert policy(context(policy_state=state))[1] == {}


def test_while_none_runs_the_count_stays_because_serve_would_heed_no_delay() -> None:
    none = {"aggregated_metrics": {}, "current_num_replicas": 0, "target_num_replicas": 5}
    _, state = policy(context(**none))
    assert policy(context(**none, policy_state=state, current_time=200.0))[0] == 5


def test_none_at_zero_is_zero() -> None:
    none = {"aggregated_metrics": {}, "current_num_replicas": 0, "target_num_replicas": 0}
    assert policy(context(**none, capacity_adjusted_min_replicas=0)) == (0, {})
