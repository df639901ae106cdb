"""Listening on a port: one check of address and port for engine, gateway and command line, with errors that help."""

import errno
import socket

from octavo_api.errors import ConfigurationError, PortInUse

_BACKLOG = 2048
_MAX_PORT = 65535


def listen(purpose: str, host: str, port: int) -> socket.socket:
    """Return a listening TCP socket. Port 0 takes a free one. Errors begin with ``purpose``.

    Raise ``PortInUse``, or ``ConfigurationError`` if ``host`` is no address of this machine or ``port`` is no port.
    """
    if not 0 <= port <= _MAX_PORT:
        raise ConfigurationError(f"{purpose} port: got {port}, allowed: 0 to {_MAX_PORT}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigurationError(f"{purpose}: host {host!r}: {error.strerror}") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Two sockets may be bound to one port with SO_REUSEADDR, but only one may listen.
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"{purpose}: port {port} of {host} is in use; stop the process that listens there, or choose another "
                "port"
            ) from None
        raise ConfigurationError(f"{purpose}: cannot listen on {host}:{port}: {error.strerror or error}") from None
    return listener


def require_free(purpose: str, host: str, port: int) -> None:
    """Raise the errors of ``listen``. gRPC listens by itself and does not report the reason of a failure."""
    listen(purpose, host, port).close()
