import pytest
import torch

from octavo_kernels import Kernels, for_device
from octavo_kernels.reference import ReferenceKernels


@pytest.fixture(scope="session")
def reference() -> ReferenceKernels:
    return ReferenceKernels()


@pytest.fixture(scope="session")
def cpu() -> Kernels:
    return for_device("cpu", num_threads=2)


@pytest.fixture(scope="session", params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param
