import importlib.util
import sys
from pathlib import Path

import pytest

_NAME = "octavo_core_harness"


@pytest.fixture(scope="session")
def harness():
    """The module ``harness.py``: fake runner, driver and builders."""
    if _NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(_NAME, Path(__file__).with_name("harness.py"))
        module = importlib.util.module_from_spec(spec)
        sys.modules[_NAME] = module
        spec.loader.exec_module(module)
    return sys.modules[_NAME]


@pytest.fixture(scope="session")
def create_core(harness):
    return harness.create_core


@pytest.fixture(scope="session")
def create_requests(harness):
    return harness.create_requests


@pytest.fixture(scope="session")
def run_to_completion(harness):
    return harness.run_to_completion
