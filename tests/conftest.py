"""Settings of all tests: threads, examples, and the distribution of files to processes."""

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

# torch's threads wait for each other by spinning. If tests run side by side, a thread without a core delays the others
# for whole time slices, and small models take fifty times as long. This is set before torch is imported; engines that
# load a model set their own number.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The duration of an example depends on the machine. Examples are the same in every run, except with
# --hypothesis-profile=random.
hypothesis.settings.register_profile("octavo", deadline=None, derandomize=True)
hypothesis.settings.register_profile("random", deadline=None, print_blob=True)
hypothesis.settings.load_profile("octavo")

OPERATOR = {Path(__file__).parent / folder for folder in ("operator", "helm", "manifests", "images")}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the operator's tier by their folder."""
    for item in items:
        if not OPERATOR.isdisjoint(item.path.parents):
            item.add_marker(pytest.mark.operator)


def pytest_collection_finish() -> None:
    """Exempt torch, Ray and the tests themselves from garbage collection: they stay until the end."""
    gc.freeze()


TOGETHER = ("tests/kernels/", "tests/engine/runner/")
"""Folders whose tests all go to one process: each process compiles the kernels again."""
APART = ("tests/operator/test_fault_sweep.py::",)
"""Files with long tests that share nothing: each test is distributed alone."""


# Not by the mark xdist_group: pytest-xdist 3.8 ignores it silently under pytest 9.2.
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "LoadFileScheduling | None":
    """Distribute whole files, so that objects which the tests of one share are created once."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(APART):
                return nodeid
            return "together" if nodeid.startswith(TOGETHER) else super()._split_scope(nodeid)

    return Scheduling(config, log)
