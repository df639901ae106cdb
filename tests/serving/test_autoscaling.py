from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_serving.autoscaling import IN_FLIGHT, desired_replicas, policy

loads = st.lists(st.floats(0, 1e6), max_size=16)


@given(loads, st.floats(0.1, 1e9), st.integers(0, 16), st.integers(0, 16))
def test_the_count_stays_within_its_bounds(load: list[float], target: float, low: int, more: int) -> None:
    assert low <= desired_replicas(load, target=target, minimum=low, maximum=low + more) <= low + more


@given(loads, st.integers(0, 100))
def test_a_fixed_count_is_fixed(load: list[float], count: int) -> None:
    assert desired_replicas(load, target=1.0, minimum=count, maximum=count) == count


@given(loads)
def test_a_count_of_zero_stays_zero_whatever_still_runs(load: list[float]) -> None:
    assert desired_replicas(load, target=1e9, minimum=0, maximum=1) == 0


@pytest.mark.parametrize(("load", "expected"), [([], 1), ([8.0], 1), ([8.5], 1), ([9.0], 2), ([8.0, 8.0, 8.0], 3)])
def test_each_replica_gets_about_its_target(load: list[float], expected: int) -> None:
    assert desired_replicas(load, target=8, minimum=1, maximum=8) == expected


def test_serves_context_is_read() -> None:
    context = SimpleNamespace(
        aggregated_metrics={IN_FLIGHT: {"a": 10.0, "b": 10.0}},
        config=SimpleNamespace(target_ongoing_requests=5),
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=3,
    )
    assert policy(context) == (3, {})


def test_a_context_before_the_first_report_gives_the_minimum() -> None:
    context = SimpleNamespace(
        aggregated_metrics=None,
        config=SimpleNamespace(target_ongoing_requests=5),
        capacity_adjusted_min_replicas=2,
        capacity_adjusted_max_replicas=3,
    )
    assert policy(context) == (2, {})
