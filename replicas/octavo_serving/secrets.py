"""Secrets are files: Serve's configuration, status and logs carry their paths only."""

import os
import secrets
from pathlib import Path

from octavo_api.errors import ConfigurationError


def create_secret(path: Path) -> None:
    """Writes a new random secret that only this user can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))


def read_secret(path: str) -> str:
    """Raises ``ConfigurationError`` where the file is missing or empty."""
    try:
        secret = Path(path).read_text().strip()
    except OSError as error:
        raise ConfigurationError(f"secret_file: {path}: {error.strerror}") from None
    if not secret:
        raise ConfigurationError(f"secret_file: {path} is empty")
    return secret
