"""Binding of the server to a free port."""

import grpc

from octavo_api.errors import StartupError
from octavo_api.startup.ports import require_free


def bind(server: grpc.aio.Server, host: str, port: int) -> int:
    """Bind ``server`` to ``host:port`` and return the port, which the system chooses if ``port`` is 0.

    Raises ``PortInUse``, or ``StartupError`` if the server cannot listen on the address.
    """
    require_free("gRPC", host, port)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        raise StartupError(f"cannot listen on {address}: {error}") from error
    if bound == 0:
        raise StartupError(f"cannot listen on {address}")
    return bound
