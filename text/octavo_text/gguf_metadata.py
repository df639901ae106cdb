"""Reader of the metadata of a GGUF file: the key-value pairs before the tensors.

The package ``gguf`` builds one numpy view per array element and takes seconds for a vocabulary. It also does not check
the lengths in the file. This module takes milliseconds, touches no tensor, and checks each length against the size of
the file. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from octavo_api.errors import ModelError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_KEYS = 1 << 16
_STRING = 8
_ARRAY = 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Layouts of ``struct`` by metadata type."""
_LENGTH_BYTES = 8
"""Bytes of the length of a string, and so the fewest bytes of a string."""


@dataclass(frozen=True, slots=True)
class GgufMetadata:
    """Metadata of one file. ``digest`` is a hex digest of its bytes: the same digest means the same tokenizer."""

    values: Mapping[str, Any]
    digest: str


def read_gguf_metadata(path: Path) -> GgufMetadata:
    """Read the metadata. Raise ``ModelError`` that names the file, the field and the problem."""
    with map_file(path) as data:
        cursor = GgufCursor(data, path)
        values, _ = cursor.metadata()
        digest = blake2b(memoryview(data)[: cursor.offset], digest_size=16).hexdigest()
    return GgufMetadata(values, digest)


def map_file(path: Path) -> mmap.mmap:
    """Map a file into memory, read-only. Raise ``ModelError`` if it is missing, unreadable or empty."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None


class GgufCursor:
    """Position in a mapped file. It reads forward and never beyond the end of the file.

    ``field`` names the value that a method reads. Each error is a ``ModelError`` that begins with the file and the
    field.
    """

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.offset = 0
        self._data = data
        self._size = len(data)
        self._path = path

    def metadata(self) -> tuple[dict[str, Any], int]:
        """Read the start of the file: return its key-value pairs and the number of tensors. Arrays are lists."""
        magic = self.take(len(_MAGIC), "the first four bytes")
        if magic != _MAGIC:
            raise self.error("not a GGUF file: the first four bytes", f"got {magic!r}, allowed: {_MAGIC!r}")
        version = self.u32("the GGUF version")
        if version not in _VERSIONS:
            allowed = ", ".join(map(str, _VERSIONS))
            raise self.error("GGUF version", f"got {version}, allowed: {allowed} (little-endian)")
        num_tensors = self.u64("the number of tensors")
        num_keys = self.u64("the number of metadata keys")
        if num_keys > _MAX_KEYS:
            raise self.error("the number of metadata keys", f"got {num_keys}, allowed: at most {_MAX_KEYS}")
        values = {}
        for index in range(num_keys):
            key = self.string(f"metadata key {index}")
            values[key] = self._value(self.u32(key), key)
        return values, num_tensors

    def take(self, count: int, field: str) -> bytes:
        """Read ``count`` bytes."""
        start = self.offset
        self._advance(count, field)
        return self._data[start : self.offset]

    def u32(self, field: str) -> int:
        (value,) = self._unpack("I", 1, field)
        return int(value)

    def u64(self, field: str) -> int:
        (value,) = self._unpack("Q", 1, field)
        return int(value)

    def string(self, field: str) -> str:
        (text,) = self._strings(1, field)
        return text

    def error(self, field: str, problem: str) -> ModelError:
        return ModelError(f"{self._path}: {field}: {problem}")

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self.string(key)
        if kind == _ARRAY:
            return self._array(key)
        if layout := _SCALARS.get(kind):
            return self._unpack(layout, 1, key)[0]
        raise self.error(key, f"got metadata type {kind}, allowed: 0 to 12")

    def _array(self, key: str) -> list[Any]:
        kind = self.u32(key)
        count = self.u64(key)
        if layout := _SCALARS.get(kind):
            return list(self._unpack(layout, count, key))
        if kind != _STRING:
            raise self.error(key, f"got an array of metadata type {kind}, allowed: numbers, booleans and strings")
        self._require(_LENGTH_BYTES * count, key)
        return self._strings(count, key)

    def _strings(self, count: int, field: str) -> list[str]:
        """Read strings in one loop: a vocabulary has a hundred thousand of them."""
        data, size, end = self._data, self._size, self.offset
        strings = []
        try:
            for _ in range(count):
                start = end + _LENGTH_BYTES
                end = start + int.from_bytes(data[end:start], "little")
                if end > size:
                    raise self._truncated(field, end)
                strings.append(data[start:end].decode())
        except UnicodeDecodeError as error:
            raise self.error(field, f"got bytes that are not UTF-8: {error.reason} at byte {error.start}") from None
        self.offset = end
        return strings

    def _unpack(self, layout: str, count: int, field: str) -> tuple[Any, ...]:
        start = self.offset
        self._advance(count * struct.calcsize(f"<{layout}"), field)
        return struct.unpack_from(f"<{count}{layout}", self._data, start)

    def _advance(self, count: int, field: str) -> None:
        self._require(count, field)
        self.offset += count

    def _require(self, count: int, field: str) -> None:
        if self.offset + count > self._size:
            raise self._truncated(field, self.offset + count)

    def _truncated(self, field: str, end: int) -> ModelError:
        return self.error("truncated or broken", f"{field} would end at byte {end}, the file has {self._size}")
