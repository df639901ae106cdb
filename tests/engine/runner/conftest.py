"""A tiny random model, and runners over it."""

from collections.abc import Callable

import pytest
import torch

from octavo_engine.runner.model_runner import ModelRunner
from octavo_engine.weights.checkpoint import Checkpoint
from octavo_kernels import Kernels
from octavo_testing.engine import tiny_model


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Checkpoint:
    return tiny_model.write_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def make_kernels() -> Callable[[str], Kernels]:
    return tiny_model.create_kernels


@pytest.fixture(scope="session")
def make_runner(checkpoint) -> Callable[..., ModelRunner]:
    """``make(backend, dtype)``"""

    def make(backend: str = "reference", dtype: torch.dtype = torch.float32) -> ModelRunner:
        return tiny_model.create_runner(checkpoint, tiny_model.create_kernels(backend), dtype)

    return make
