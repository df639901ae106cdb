"""Keeps converted tokenizers on disk, so that a vocabulary is converted once per machine and not once per start."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer

# A change of the conversion is a change of this number: older documents are then no longer found.
_CONVERSION = 1


def cache_folder() -> Path:
    """Returns ``$XDG_CACHE_HOME/octavo/tokenizers``, by default ``~/.cache/octavo/tokenizers``."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(base)) / "octavo" / "tokenizers"


def cached_tokenizer(folder: Path, digest: str, convert: Callable[[], str]) -> Tokenizer:
    """Returns the tokenizer kept under ``digest``, or converts and keeps its document.

    A folder that cannot be read or written, or a damaged document in it, costs the conversion and nothing else.
    Whatever ``tokenizers`` raises at a fresh document is passed on.
    """
    path = folder / f"{digest}-{_CONVERSION}.json"
    try:
        return Tokenizer.from_file(str(path))
    except Exception:  # tokenizers raises nothing narrower, for a missing file too
        document = convert()
    tokenizer = Tokenizer.from_str(document)
    _keep(path, document)
    return tokenizer


def _keep(path: Path, document: str) -> None:
    """Writes a file beside ``path`` and renames it: who reads at the same time finds all of it or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", dir=path.parent)
    except OSError:
        return
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(document)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
