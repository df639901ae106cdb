"""Listeners, bound before the gateway serves anything, so that a port in use is only an error."""

import errno
import socket

from octavo_api.errors import ConfigurationError, PortInUse

# The peer's machine is gone: noticed after 30 + 3 × 10 seconds, so that its request does not run on.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


def bind(what: str, host: str, port: int) -> socket.socket:
    """Return a bound TCP socket. Port 0 takes a free one.

    Raise ``PortInUse``, or ``ConfigurationError`` if ``host`` is no address of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigurationError(f"{what}: host {host!r}: {error.strerror}") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
        listener.bind(address)
        # Two sockets may be bound to one port with SO_REUSEADDR, but only one may listen.
        listener.listen(2048)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"{what}: port {port} of {host} is in use; stop what listens there, or choose another"
            ) from None
        raise ConfigurationError(f"{what}: cannot listen on {host}:{port}: {error.strerror}") from None
    return listener


def probe(what: str, host: str, port: int) -> None:
    """Raise the errors of ``bind``. gRPC binds by itself and does not report the reason of a failure."""
    bind(what, host, port).close()
