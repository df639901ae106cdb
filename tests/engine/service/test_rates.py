import pytest

from octavo_engine.core.plan import RowWork
from octavo_engine.rates import Measurements, StepRates


def decodes(count: int) -> list[RowWork]:
    return [RowWork(row, start=100, count=1, choices=(0,)) for row in range(count)]


def prefill(tokens: int) -> list[RowWork]:
    return [RowWork(1000, start=0, count=tokens)]


def test_nothing_is_claimed_before_anything_was_measured():
    assert StepRates().measurements == Measurements()


def test_a_decode_step_is_a_step_of_single_tokens():
    rates = StepRates()
    rates.observe(decodes(8), 0.02)
    assert rates.measurements == Measurements(decode_step_s=0.02, step_s=0.02)


def test_decode_time_follows_a_change_within_some_tens_of_steps():
    rates = StepRates()
    rates.observe(decodes(8), 0.02)
    for _ in range(30):
        rates.observe(decodes(8), 0.04)
    assert rates.measurements.decode_step_s == pytest.approx(0.04, rel=0.05)


def test_prefill_is_measured_apart_from_the_decodes_beside_it():
    rates = StepRates()
    for _ in range(20):
        rates.observe(decodes(8), 0.02)
        rates.observe(decodes(8) + prefill(512), 0.02 + 512 / 4000)
    assert rates.measurements.prefill_tokens_per_s == pytest.approx(4000)
    assert rates.measurements.decode_step_s == pytest.approx(0.02)


def test_a_small_chunk_weighs_little_in_the_prefill_rate():
    rates = StepRates()
    rates.observe(prefill(2000), 0.5)
    rates.observe(prefill(2), 0.01)
    assert rates.measurements.prefill_tokens_per_s == pytest.approx(4000, rel=0.05)


def test_a_stale_decode_time_leaves_the_prefill_a_time_of_its_own():
    rates = StepRates()
    rates.observe(decodes(100), 1.0)
    rates.observe(decodes(1) + prefill(100), 0.1)
    assert rates.measurements.prefill_tokens_per_s == pytest.approx(2000)


def test_an_empty_step_changes_no_rate():
    rates = StepRates()
    rates.observe(decodes(1), 0.02)
    rates.observe([], 5.0)
    assert rates.measurements.decode_step_s == 0.02
