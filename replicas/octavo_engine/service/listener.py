"""Binding of the server to a free port."""

import errno
import socket

import grpc

from octavo_api.errors import PortInUse, StartupError


def bind(server: grpc.aio.Server, host: str, port: int) -> int:
    """Bind ``server`` to ``host:port`` and return the port, which the system chooses if ``port`` is 0.

    Raises ``PortInUse``, or ``StartupError`` if the server cannot listen on the address. The function probes the port
    first, because gRPC's own error names no reason.
    """
    if port:
        _probe(host, port)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        raise StartupError(f"cannot listen on {address}: {error}") from error
    if bound == 0:
        raise StartupError(f"cannot listen on {address}")
    return bound


def _probe(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OverflowError:
        raise StartupError(f"port: got {port}, allowed: 0 to 65535") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(f"{host}:{port}: something listens there already; choose another port") from error
        raise StartupError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
