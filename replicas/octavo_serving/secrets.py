"""Secrets, which are never in Serve's configuration, status or logs."""

import os
import secrets
from pathlib import Path

from octavo_serving import ray_adapter


def create_secret(path: Path) -> None:
    """Write a new random secret that only this user can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))


def engine_secret(application: str) -> str:
    """Return the secret that the application's engines require of its gateways. Block for a moment.

    The first caller creates it. The secret is in Ray's own store, so only a client with Ray's token can read it.
    """
    return ray_adapter.get_or_create(f"engine-secret/{application}", secrets.token_hex(32))
