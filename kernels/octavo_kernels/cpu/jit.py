"""The compiler of the kernels: its target, its flags, and the folder of compiled code.

LLVM compiles the arithmetic as written. A flag for fast arithmetic would allow LLVM to choose an order of sums, or a
fused multiply-add. Both would then differ between instruction sets. A kernel that needs either contains it explicitly.

Numba identifies a cached function by its own source file alone. So the cache lies under a digest of all sources here,
and an upgrade never runs stale machine code. Numba would also keep one cache for each folder of the sources. The digest
already identifies the code, so all copies of the same sources share one cache. ``NUMBA_CACHE_DIR`` takes precedence if
it is set.
"""

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numba.extending
from numba.core.caching import CompileResultCacheImpl, FunctionCache, UserProvidedCacheLocator

from octavo_kernels.cpu import instruction_set  # noqa: F401  sets Numba's target before anything is compiled

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


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


class _Locator(UserProvidedCacheLocator):  # type: ignore[misc]  # numba has no types
    """Numba's own files, in one folder wherever the sources lie."""

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        self._py_file = py_file
        self._lineno = py_func.__code__.co_firstlineno
        self._cache_path = _CACHE_DIR

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> "_Locator":
        return cls(py_func, py_file)


class _CacheImpl(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_Locator,)


class _Cache(FunctionCache):  # type: ignore[misc]
    _impl_class = _CacheImpl


def jit() -> Callable[[F], F]:
    """Return a decorator that compiles without the GIL, with a cache on disk, and in the order written."""

    def decorate(function: F) -> F:
        dispatcher = numba.njit(nogil=True, error_model="numpy")(function)
        if _CACHE_DIR is not None:
            dispatcher._cache = _Cache(function)
        return cast(F, dispatcher)

    return decorate


def inline(function: F) -> F:
    """Make a function callable in kernels, which compile it as a part of themselves."""
    return cast(F, numba.extending.register_jitable(function))


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make LLVM code callable in kernels.

    ``function(typingctx, *types)`` returns the signature and the generator of the code, or raises an error for types
    that it does not support.
    """
    return cast(Callable[..., Any], numba.extending.intrinsic(function))
