"""API keys: admission of clients, each as a tenant.

The file has one key per line: ``NAME KEY``, or ``KEY`` alone for the tenant ``default``. Empty lines and lines that
start with ``#`` are skipped. A tenant may have several keys, so that keys can change without a gap. The process keeps
only keyed hashes of the keys.
"""

import logging
import os
import re
import secrets
import time
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Self

from octavo_api.errors import AuthenticationFailed, ConfigurationError

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_KEY = re.compile(r"[\x21-\x7e]{8,512}")

DEFAULT_TENANT = "default"

REREAD_S = 1.0
"""Minimum seconds between two checks of the file.

The next request after them reads a changed file (a rotated Secret).
"""


class ApiKeys:
    """The keys of one file, read again when it changes."""

    def __init__(self, path: Path, tenants: dict[bytes, str], pepper: bytes, version: tuple[int, ...]) -> None:
        self._path = path
        self._tenants = tenants
        self._pepper = pepper
        self._version = version
        self._last_error = ""
        self._checked_at = time.monotonic()
        self.on_reload: Callable[[bool], None] = lambda applied: None
        """Called at each change of the file, with True if the change was applied."""

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read the file. Raise ``ConfigurationError`` that names file and line, never a key."""
        pepper = secrets.token_bytes(32)
        version = _version(path)
        return cls(path, _read(path, pepper), pepper, version)

    def authenticate(self, key: str | None) -> str:
        """Return the tenant's name. Raise ``AuthenticationFailed``."""
        self._refresh()
        if key is None:
            raise AuthenticationFailed(
                "You didn't provide an API key. Send it as a header: Authorization: Bearer YOUR_KEY"
            )
        digest = _digest(key, self._pepper)
        # The digest is keyed, so the time of the look-up reveals nothing about the key.
        tenant = self._tenants.get(digest)
        if tenant is None:
            raise AuthenticationFailed("Incorrect API key provided.")
        return tenant

    def reload(self) -> None:
        """Read the file again. On an error raise ``ConfigurationError`` and keep the present keys."""
        version = _version(self._path)
        self._tenants = _read(self._path, self._pepper)
        self._version = version

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._checked_at < REREAD_S:
            return
        self._checked_at = now
        try:
            if _version(self._path) == self._version:
                return
            self.reload()
        except ConfigurationError as error:
            if error.message != self._last_error:  # once, not once a second
                self._last_error = error.message
                logger.error("cannot reload the API keys, the previous keys stay valid: %s", error.message)
                self.on_reload(False)
        else:
            self._last_error = ""
            logger.info("reloaded the API keys from %s", self._path)
            self.on_reload(True)


def _version(path: Path) -> tuple[int, ...]:
    try:
        stat = os.stat(path)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino, stat.st_dev)


def _read(path: Path, pepper: bytes) -> dict[bytes, str]:
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not UTF-8 at byte {error.start}") from None
    tenants: dict[bytes, str] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{path}, line {number}"
        if len(words) > 2:
            raise ConfigurationError(f"{where}: got {len(words)} words, allowed: NAME KEY or KEY")
        name, key = words if len(words) == 2 else (DEFAULT_TENANT, *words)
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"{where}: name: allowed: 1 to 63 letters, digits, and . _ -")
        if not _KEY.fullmatch(key):
            raise ConfigurationError(f"{where}: key: allowed: 8 to 512 printable ASCII characters")
        digest = _digest(key, pepper)
        if digest in tenants:
            raise ConfigurationError(f"{where}: key: also in an earlier line, allowed: each key once")
        tenants[digest] = name
    if not tenants:
        raise ConfigurationError(f"{path}: got no key, allowed: one key per line, as NAME KEY or KEY")
    return tenants


def _digest(key: str, pepper: bytes) -> bytes:
    return blake2b(key.encode(), key=pepper, digest_size=32).digest()
