"""What all tests share."""

import os
from pathlib import Path

import pytest

# torch's threads wait for one another by spinning: where tests run side by side, one that gets no core holds up the
# other for whole time slices, and small models take fifty times as long. Set before anything imports torch; engines
# that load a model set their own number.
os.environ.setdefault("OMP_NUM_THREADS", "1")

OPERATOR = {Path(__file__).parent / folder for folder in ("operator", "helm", "manifests", "images")}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what belongs to the operator's tier by its folder."""
    for item in items:
        if not OPERATOR.isdisjoint(item.path.parents):
            item.add_marker(pytest.mark.operator)
