import socket

import pytest

from octavo_api.errors import ConfigurationError, PortInUse
from octavo_api.startup.ports import listen, require_free


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_a_listener_accepts_and_frees_its_port_when_closed(host: str) -> None:
    with listen("HTTP", host, 0) as listener:
        port = listener.getsockname()[1]
        socket.create_connection((host, port), timeout=5).close()
        with pytest.raises(PortInUse, match=rf"^gRPC: port {port} of {host} is in use; .* choose another port$"):
            require_free("gRPC", host, port)
    require_free("gRPC", host, port)


def test_a_port_that_another_socket_binds_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder, pytest.raises(PortInUse):
        listen("HTTP", "127.0.0.1", holder.getsockname()[1])


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("192.0.2.1", 0, r"HTTP: cannot listen on 192\.0\.2\.1:0: "),
        ("no.such.host.invalid", 0, r"HTTP: host 'no\.such\.host\.invalid': "),
        ("127.0.0.1", 65536, r"HTTP port: got 65536, allowed: 0 to 65535"),
        ("127.0.0.1", -1, r"HTTP port: got -1, allowed: 0 to 65535"),
    ],
)
def test_an_address_that_cannot_be_used_is_rejected(host: str, port: int, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        listen("HTTP", host, port)
