"""How the kernels are compiled: flags, and where compiled code is kept.

Numba knows a cached function by its own source file alone, so the cache lies under a digest of all sources here: an
upgrade never runs stale machine code. ``NUMBA_CACHE_DIR`` wins where it is set.
"""

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

log = logging.getLogger(__name__)

# No flag that assumes away infinities and NaN: masks are made of them.
_FAST = frozenset({"reassoc", "contract", "arcp", "nsz"})


def _cache_dir() -> str | None:
    digest = hashlib.blake2b(digest_size=8)
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    name = f"numba-{numba.__version__}-{digest.hexdigest()}"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for base in (home, Path(tempfile.gettempdir()) / f"cache-{os.getuid()}"):
        path = base / "octavo" / name
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError:
            continue
        if os.access(path, os.W_OK) and path.stat().st_uid == os.getuid():
            return str(path)
    log.warning("no writable cache directory: kernels are compiled at every start; set NUMBA_CACHE_DIR")
    return None


_CACHE_DIR = numba.config.CACHE_DIR or _cache_dir()


def jit(*, exact: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Compiles without the GIL and with a cache on disk. ``exact`` keeps the order of operations as written."""

    def decorate(function: Callable[..., Any]) -> Any:
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = _CACHE_DIR or ""
        try:
            return numba.njit(
                nogil=True,
                cache=_CACHE_DIR is not None,
                fastmath={"contract"} if exact else set(_FAST),
                error_model="numpy",
            )(function)
        finally:
            numba.config.CACHE_DIR = before

    return decorate
