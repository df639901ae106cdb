"""The compiler of the kernels: its target, its flags, and the folder of compiled code.

The arithmetic is compiled as it is written. A flag of fast arithmetic would let LLVM choose an order of sums, or a
fused multiply-add, that differs between instruction sets: a kernel that wants either writes it down.

Numba knows a cached function by its own source file alone, so the cache lies under a digest of all sources here: an
upgrade never runs stale machine code. Numba would also keep a cache for each folder that the sources lie in; the digest
says all there is to say, so every copy of the same sources shares one. ``NUMBA_CACHE_DIR`` wins where it is set.
"""

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, UserProvidedCacheLocator

from octavo_kernels.cpu import instruction_set  # noqa: F401  sets Numba's target before anything is compiled

log = logging.getLogger(__name__)


def _cache_dir() -> str | None:
    digest = hashlib.blake2b(digest_size=8)
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    name = f"numba-{numba.__version__}-{digest.hexdigest()}"
    for base in _bases():
        path = base / name
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError:
            continue
        if os.access(path, os.W_OK) and path.stat().st_uid == os.getuid():
            return str(path)
    log.warning("no writable cache directory: kernels are compiled at every start; set NUMBA_CACHE_DIR")
    return None


def _bases() -> list[Path]:
    if numba.config.CACHE_DIR:
        return [Path(numba.config.CACHE_DIR)]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return [home / "octavo", Path(tempfile.gettempdir()) / f"cache-{os.getuid()}" / "octavo"]


_CACHE_DIR = _cache_dir()


class _Locator(UserProvidedCacheLocator):
    """Numba's own files, in one folder wherever the sources lie."""

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        self._py_file = py_file
        self._lineno = py_func.__code__.co_firstlineno
        self._cache_path = _CACHE_DIR

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> "_Locator":
        return cls(py_func, py_file)


class _CacheImpl(CompileResultCacheImpl):
    _locator_classes = (_Locator,)


class _Cache(FunctionCache):
    _impl_class = _CacheImpl


def jit() -> Callable[[Callable[..., Any]], Any]:
    """Compiles without the GIL and with a cache on disk; keeps the order of operations as written."""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(nogil=True, error_model="numpy")(function)
        if _CACHE_DIR is not None:
            dispatcher._cache = _Cache(function)
        return dispatcher

    return decorate
