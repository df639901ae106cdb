"""Keeps converted tokenizers on disk, so that a vocabulary is converted once per machine and not once per start."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

# A change of the conversion is a change of this number: older documents are then no longer found.
_CONVERSION = 1


def cache_folder() -> Path:
    """Returns ``$XDG_CACHE_HOME/octavo/tokenizers``, by default ``~/.cache/octavo/tokenizers``."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(base)) / "octavo" / "tokenizers"


def cached(folder: Path, digest: str, convert: Callable[[], str]) -> str:
    """Returns the document kept under ``digest``, or converts and keeps it.

    A folder that cannot be read or written costs the conversion and nothing else. Writers race by atomic rename.
    """
    path = folder / f"{digest}-{_CONVERSION}.json"
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        document = convert()
        _keep(path, document)
        return document


def _keep(path: Path, document: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=f".{path.stem}-", delete=False
        ) as file:
            try:
                file.write(document)
                file.close()
                os.replace(file.name, path)
            except OSError:
                os.unlink(file.name)
    except OSError:
        return
