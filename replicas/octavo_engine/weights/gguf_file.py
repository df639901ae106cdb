"""Reader of a GGUF file: its metadata, its table of tensors, and one dequantised tensor at a time.

``gguf.GGUFReader`` makes a numpy array for every string of the vocabulary and does not check the lengths in the file.
This reader checks each length against the file's size, to reject a broken file at once. The format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from gguf.quants import dequantize

from octavo_api.errors import ModelError

if TYPE_CHECKING:
    import torch

_SLICE_ELEMENTS = 1 << 22
"""Maximum elements dequantised at once, so that temporaries stay small beside the weights."""

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor's place. ``shape`` is row-major (as torch has it); ``offset`` counts from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: gguf.GGMLQuantizationType
    offset: int
    nbytes: int


class GgufFile:
    """An open file. ``metadata`` holds every key; arrays are lists. Raises ``ModelError`` naming file and fault."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._data = np.memmap(path, dtype=np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise ModelError(f"{path}: cannot be read: {error}") from error
        cursor = _Cursor(self._data, path)
        if bytes(cursor.take(4, "the magic")) != b"GGUF":
            raise ModelError(f"{path}: not a GGUF file (its first four bytes are not 'GGUF')")
        version = cursor.scalar("<I", "the version")
        if version not in (2, 3):
            raise ModelError(f"{path}: GGUF version: got {version}, allowed: 2, 3 (little-endian)")
        num_tensors = cursor.scalar("<Q", "the number of tensors")
        num_keys = cursor.scalar("<Q", "the number of metadata keys")
        self.metadata: dict[str, Any] = {}
        for index in range(num_keys):
            key = cursor.string(f"metadata key {index}")
            self.metadata[key] = cursor.value(cursor.scalar("<I", key), key)
        if (parts := self.metadata.get("split.count", 1)) > 1:
            raise ModelError(f"{path}: split.count: got {parts}, allowed: 1 (join them: llama-gguf-split --merge)")
        headers = [cursor.tensor_header(index) for index in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise ModelError(f"{path}: general.alignment: got {alignment!r}, allowed: a positive integer")
        self.header_bytes = cursor.offset
        start = -(-cursor.offset // alignment) * alignment
        self.tensors = {header[0]: self._tensor(*header, start=start) for header in headers}

    def read(self, name: str, dtype: "torch.dtype") -> "torch.Tensor":
        """Return a new tensor with the dequantised values in ``dtype``."""
        import torch

        tensor = self.tensors[name]
        raw = self._data[tensor.offset : tensor.offset + tensor.nbytes]
        rows = math.prod(tensor.shape[:-1])
        raw = raw.reshape(rows, -1)
        result = torch.empty(rows, tensor.shape[-1], dtype=dtype)
        step = max(1, _SLICE_ELEMENTS // max(1, tensor.shape[-1]))
        for first in range(0, rows, step):
            values = dequantize(np.ascontiguousarray(raw[first : first + step]), tensor.type)
            result[first : first + step] = torch.from_numpy(np.require(values, np.float32, ["C", "W"]))
        return result.view(tensor.shape)

    def _tensor(self, name: str, shape: tuple[int, ...], type_id: int, offset: int, *, start: int) -> GgufTensor:
        try:
            kind = gguf.GGMLQuantizationType(type_id)
            block, size = gguf.GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            raise ModelError(f"{self.path}: {name}: got tensor type {type_id}, which is unknown") from None
        if shape[-1] % block:
            raise ModelError(f"{self.path}: {name}: rows of {shape[-1]} are no multiple of {kind.name}'s block {block}")
        nbytes = math.prod(shape) // block * size
        end = start + offset + nbytes
        if end > len(self._data):
            raise ModelError(
                f"{self.path}: truncated: {name} ends at byte {end}, the file has {len(self._data)}; fetch it again"
            )
        try:
            dequantize(np.zeros(size, np.uint8), kind)
        except NotImplementedError:
            raise ModelError(f"{self.path}: {name}: got type {kind.name}, which cannot be dequantised") from None
        return GgufTensor(name, shape, kind, start + offset, nbytes)


class _Cursor:
    """Position in the file. It reads forward and never beyond the end of the file."""

    def __init__(self, data: np.ndarray, path: Path) -> None:
        self._data = memoryview(data)
        self._path = path
        self.offset = 0

    def take(self, count: int, what: str) -> memoryview:
        end = self.offset + count
        if end > len(self._data):
            raise self._truncated(what, end)
        piece = self._data[self.offset : end]
        self.offset = end
        return piece

    def scalar(self, layout: str, what: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout), what))[0]

    def string(self, what: str) -> str:
        return str(self.take(self.scalar("<Q", what), what), "utf-8", "replace")

    def value(self, kind: int, what: str) -> Any:
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self._array(what)
        return self.scalar(self._layout(kind, what), what)

    def tensor_header(self, index: int) -> tuple[str, tuple[int, ...], int, int]:
        what = f"the header of tensor {index}"
        name = self.string(what)
        dimensions = self.scalar("<I", what)
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise ModelError(f"{self._path}: {name}: got {dimensions} dimensions, allowed: 1 to {_MAX_DIMENSIONS}")
        shape = tuple(reversed(struct.unpack(f"<{dimensions}Q", self.take(8 * dimensions, what))))
        return name, shape, self.scalar("<I", what), self.scalar("<Q", what)

    def _array(self, what: str) -> list[Any]:
        kind = self.scalar("<I", what)
        count = self.scalar("<Q", what)
        if kind in (_STRING, _ARRAY):
            smallest = 8
            if self.offset + smallest * count > len(self._data):
                raise self._truncated(what, self.offset + smallest * count)
            return [self.value(kind, what) for _ in range(count)]
        layout = self._layout(kind, what)
        return np.frombuffer(self.take(count * struct.calcsize(layout), what), dtype=layout).tolist()

    def _layout(self, kind: int, what: str) -> str:
        if kind not in _SCALARS:
            raise ModelError(f"{self._path}: {what}: got metadata type {kind}, which is unknown")
        return _SCALARS[kind]

    def _truncated(self, what: str, end: int) -> ModelError:
        return ModelError(
            f"{self._path}: truncated or broken: {what} would end at byte {end}, the file has {len(self._data)}"
        )
