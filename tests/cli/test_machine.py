from hypothesis import given
from hypothesis import strategies as st

from octavo_cli.machine import available_cpus, cpus_per_replica


@given(st.floats(0.1, 256), st.integers(1, 64))
def test_all_replicas_fit_together(cpus: float, replicas: int) -> None:
    assert cpus_per_replica(cpus, replicas) * replicas <= cpus + 1e-9


def test_two_replicas_share_two_cores() -> None:
    assert cpus_per_replica(2.0, 2) == 1.0
    assert cpus_per_replica(2.0, 3) == 0.66


def test_this_machine_has_a_cpu() -> None:
    assert available_cpus() > 0
