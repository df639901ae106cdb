"""The certificate of both listeners: a folder with ``tls.crt`` and ``tls.key``, read again when it changes.

Connections that are open keep the certificate that they began with; new ones get the newest that is good.
"""

import logging
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import grpc

from octavo_api.errors import ConfigurationError

logger = logging.getLogger(__name__)

CERTIFICATE, KEY = "tls.crt", "tls.key"


@dataclass(frozen=True, slots=True)
class Pair:
    """PEM: the certificate with its chain, and the private key."""

    certificate: bytes
    key: bytes

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raises ``ConfigurationError`` that names the file."""
        before, found = None, cls._read(folder)
        while found != before:  # both may be replaced together, between the reads of the two
            before, found = found, cls._read(folder)
        if isinstance(found, str):
            raise ConfigurationError(found)
        return found

    @classmethod
    def _read(cls, folder: Path) -> Self | str:
        """Returns what is there at this look, or what is wrong with it."""
        found = []
        for name in (CERTIFICATE, KEY):
            try:
                found.append((folder / name).read_bytes())
            except OSError as error:
                return f"TLS: {folder / name}: {error.strerror}"
        return cls(*found)

    def context(self, folder: Path) -> ssl.SSLContext:
        """Returns a server's context; raises ``ConfigurationError`` where the two are no pair. ``folder`` is named."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        try:
            # From memory: what is checked is what is used, while the files may be replaced one after the other.
            with _as_file(self.certificate) as certificate, _as_file(self.key) as key:
                context.load_cert_chain(certificate, key, password=_no_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error)
            raise ConfigurationError(
                f"TLS: {folder}: {CERTIFICATE} and {KEY} cannot be used: {str(reason).replace('_', ' ').lower()}"
            ) from None
        return context


class Certificate:
    """One folder's certificate, for uvicorn as a context, for gRPC as credentials."""

    def __init__(self, folder: Path, pair: Pair) -> None:
        self._folder = folder
        self._pair = pair
        self._complaint = ""
        self._current = pair.context(folder)
        self.context = pair.context(folder)
        """Stays the same for ever; each handshake goes on in the newest one."""
        self.context.sni_callback = self._hand_over

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Raises ``ConfigurationError``."""
        return cls(folder, Pair.read(folder))

    def refresh(self) -> bool | None:
        """Takes up a changed pair. Returns True for a new one, False for one that is refused, None for no change."""
        try:
            pair = Pair.read(self._folder)
            if pair == self._pair:
                self._complaint = ""
                return None
            current = pair.context(self._folder)
        except ConfigurationError as error:
            return self._refuse(error)
        self._pair, self._current, self._complaint = pair, current, ""
        logger.info("TLS: a new certificate was read from %s", self._folder)
        return True

    def credentials(self) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(self._configuration(), self._configuration)

    def _refuse(self, error: ConfigurationError) -> bool | None:
        """Says it once."""
        if error.message == self._complaint:
            return None
        self._complaint = error.message
        logger.error("%s; the certificate stays as it was", error.message)
        return False

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(self._pair.key, self._pair.certificate)])

    def _hand_over(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Called in each handshake, whether or not the client names a server."""
        connection.context = self._current


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Gives what ``ssl`` reads from paths only a path that no disk and no other process sees."""
    with os.fdopen(os.memfd_create("octavo-tls"), "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def _no_password() -> str:
    """Without it OpenSSL would ask on the terminal."""
    raise ValueError("the key is encrypted")
