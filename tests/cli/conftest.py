from collections.abc import Iterator

import pytest

from octavo_testing import processes
from octavo_testing.command import synthetic_endpoint


@pytest.fixture
def free_ports() -> tuple[int, int]:
    """Two ports that nothing listens on."""
    http, grpc = processes.free_ports(2)
    return http, grpc


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real gateway with an engine whose tokens are made up, as plain processes."""
    with synthetic_endpoint(tmp_path_factory.mktemp("endpoint")) as url:
        yield url
