"""Secrets never stand in Serve's configuration, status or logs."""

import os
import secrets
from pathlib import Path

from octavo_serving import ray_adapter


def create_secret(path: Path) -> None:
    """Writes a new random secret that only this user can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))


def engine_secret(application: str) -> str:
    """Returns what the application's engines ask its gateways for; whoever comes first draws it. Blocks for a moment.

    It stands in Ray's own store: who has Ray's token has it, and nobody else.
    """
    return ray_adapter.kept(f"engine-secret/{application}", secrets.token_hex(32))
