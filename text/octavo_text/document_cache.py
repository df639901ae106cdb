"""Cache of converted tokenizers on disk. A vocabulary is converted once per machine, not once per start."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer

# Increase this number after a change of the conversion, so that older documents are no longer found.
_CONVERSION = 1


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/octavo/tokenizers``, by default ``~/.cache/octavo/tokenizers``."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(base)) / "octavo" / "tokenizers"


def cached_tokenizer(folder: Path, digest: str, convert: Callable[[], str]) -> Tokenizer:
    """Return the tokenizer kept under ``digest``, or convert and keep its document.

    If a folder cannot be read or written, or its document is damaged, the only loss is the time of a conversion.
    Errors of ``tokenizers`` for a fresh document are passed on.
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
    """Write a file beside ``path`` and rename it. A reader at the same time finds all of it or nothing."""
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
