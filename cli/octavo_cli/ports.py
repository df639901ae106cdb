"""Check that a port is free, and search for the process that has it."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from octavo_api.errors import PortInUse
from octavo_api.startup import ports

_LISTEN = "0A"


def require_free(host: str, port: int, purpose: str) -> None:
    """Raise ``PortInUse`` if the port is not free.

    The error names port, purpose and, if visible, the listening process.
    """
    try:
        ports.require_free(purpose, host, port)
    except PortInUse:
        raise PortInUse(f"{purpose} port {port}: address already in use{_holder(port)}; choose another port") from None


def _holder(port: int) -> str:
    """Return `` by NAME (pid N)``, or nothing if the process is another user's."""
    inodes = _listening(port)
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and not inodes.isdisjoint(_sockets(process)):
            with suppress(OSError):  # the process ended during the search
                name = (process / "comm").read_text().strip()
                return f" by {name} (pid {process.name})"
    return ""


def _listening(port: int) -> set[str]:
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    return inodes


def _sockets(process: Path) -> Iterator[str]:
    """Yield the targets of the process's descriptors; nothing for another user's process."""
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:
        return
    for descriptor in descriptors:
        with suppress(OSError):
            yield str(descriptor.readlink())
