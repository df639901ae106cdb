import socket

import pytest


@pytest.fixture
def free_ports() -> tuple[int, int]:
    """Two ports that nothing listens on."""
    with socket.socket() as one, socket.socket() as two:
        for probe in (one, two):
            probe.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]
