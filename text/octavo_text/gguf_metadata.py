"""Reader of the metadata of a GGUF file: the key-value pairs before the tensors.

The package ``gguf`` builds one numpy view per array element and takes seconds for a vocabulary. This module takes
milliseconds and touches no tensor. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3,
little-endian.
"""

import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from octavo_api.errors import ModelError

_VERSIONS = (2, 3)
_MAX_KEYS = 1 << 16
_STRING = 8
_ARRAY = 9
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_HEADER = struct.Struct("<4sIQQ")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GgufMetadata:
    """Metadata of one file. ``digest`` is a hex digest of its bytes: the same digest means the same tokenizer."""

    values: Mapping[str, Any]
    digest: str


def read_gguf_metadata(path: Path) -> GgufMetadata:
    """Read the metadata. Raise ``ModelError`` that names the file and the problem."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).metadata()
    except (OSError, ValueError, struct.error) as error:
        raise ModelError(f"{path}: not a readable GGUF file: {error}") from None


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def metadata(self) -> GgufMetadata:
        magic, version, _, count = self._unpack(_HEADER)
        if magic != b"GGUF":
            raise ValueError(f"it starts with {magic!r}, allowed: b'GGUF'")
        if version not in _VERSIONS:
            raise ValueError(f"got version {version}, allowed: {', '.join(map(str, _VERSIONS))} (little-endian)")
        if count > _MAX_KEYS:
            raise ValueError(f"got {count} keys, allowed: at most {_MAX_KEYS}")
        values = {}
        for _ in range(count):
            key = self._string()
            values[key] = self._value(self._unpack(_U32)[0], key)
        digest = blake2b(memoryview(self._data)[: self._at], digest_size=16).hexdigest()
        return GgufMetadata(values, digest)

    def _unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        values = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return values

    def _string(self) -> str:
        (length,) = self._unpack(_U64)
        end = self._at + length
        if end > len(self._data):
            raise ValueError("it ends within a string")
        text = self._data[self._at : end].decode()
        self._at = end
        return text

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(key)
        if layout := _SCALARS.get(kind):
            return self._unpack(layout)[0]
        raise ValueError(f"{key} has a value of type {kind}, allowed: 0 to 12")

    def _array(self, key: str) -> list[Any]:
        (kind,) = self._unpack(_U32)
        (count,) = self._unpack(_U64)
        if layout := _SCALARS.get(kind):
            if count * layout.size > len(self._data) - self._at:
                raise ValueError(f"it ends within {key}")
            return list(self._unpack(struct.Struct(f"<{count}{layout.format[-1]}")))
        if kind != _STRING:
            raise ValueError(f"{key} is an array of type {kind}, allowed: numbers, booleans and strings")
        read: Callable[[], str] = self._string
        return [read() for _ in range(count)]
