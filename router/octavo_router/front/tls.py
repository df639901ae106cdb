"""The certificate of both listeners: a folder with ``tls.crt`` and ``tls.key``, read again when it changes.

Open connections keep the certificate that they began with. New connections get the newest good one.
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
class KeyPair:
    """The certificate with its chain, and the private key, both in PEM."""

    certificate: bytes
    key: bytes

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Read the folder. Raise ``ConfigurationError`` that names the file."""
        before, found = None, cls._read(folder)
        while found != before:  # both may be replaced together, between the reads of the two
            before, found = found, cls._read(folder)
        if isinstance(found, str):
            raise ConfigurationError(found)
        return found

    @classmethod
    def _read(cls, folder: Path) -> Self | str:
        """Return the pair that the folder holds now, or a message about the problem."""
        found = []
        for name in (CERTIFICATE, KEY):
            try:
                found.append((folder / name).read_bytes())
            except OSError as error:
                return f"TLS: {folder / name}: {error.strerror}"
        return cls(*found)

    def context(self, folder: Path) -> ssl.SSLContext:
        """Return a server's context. ``folder`` is only for messages.

        Raise ``ConfigurationError`` if certificate and key do not match.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        try:
            # From memory: the checked pair is the used pair, while the files may be replaced one after the other.
            with _as_file(self.certificate) as certificate, _as_file(self.key) as key:
                context.load_cert_chain(certificate, key, password=_no_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error)
            raise ConfigurationError(
                f"TLS: {folder}: {CERTIFICATE} and {KEY} cannot be used: {str(reason).replace('_', ' ').lower()}"
            ) from None
        return context


class Certificate:
    """One folder's certificate: a context for uvicorn, credentials for gRPC."""

    def __init__(self, folder: Path, pair: KeyPair) -> None:
        self._folder = folder
        self._pair = pair
        self._last_error = ""
        self._current = pair.context(folder)
        self.context = pair.context(folder)
        """Context that never changes. Each handshake continues in the newest one."""
        self.context.sni_callback = self._use_newest_context

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Read the folder. Raise ``ConfigurationError``."""
        return cls(folder, KeyPair.from_folder(folder))

    def refresh(self) -> bool | None:
        """Apply a changed pair. Return True for a new pair, False for a rejected one, None for no change."""
        try:
            pair = KeyPair.from_folder(self._folder)
            if pair == self._pair:
                self._last_error = ""
                return None
            current = pair.context(self._folder)
        except ConfigurationError as error:
            return self._reject(error)
        self._pair, self._current, self._last_error = pair, current, ""
        logger.info("TLS: loaded a new certificate from %s", self._folder)
        return True

    def credentials(self) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(self._configuration(), self._configuration)

    def _reject(self, error: ConfigurationError) -> bool | None:
        """Log the error once."""
        if error.message == self._last_error:
            return None
        self._last_error = error.message
        logger.error("%s; the gateway keeps the previous certificate", error.message)
        return False

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(self._pair.key, self._pair.certificate)])

    def _use_newest_context(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Set the newest context. Called in each handshake, whether or not the client names a server."""
        connection.context = self._current


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Yield a path with ``content``, because ``ssl`` reads keys from paths only.

    No disk and no other process sees it.
    """
    with os.fdopen(os.memfd_create("octavo-tls"), "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def _no_password() -> str:
    """Raise an error for an encrypted key. Without this function OpenSSL would ask on the terminal."""
    raise ValueError("the key is encrypted")
