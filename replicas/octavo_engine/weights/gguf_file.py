"""Reader of a GGUF file: its metadata, its table of tensors, and one dequantised tensor at a time.

``octavo_text.gguf_metadata`` reads the metadata and describes the format. Each length is checked against the size of
the file, to reject a broken file at once.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import numpy as np
from gguf.quants import dequantize

from octavo_api.errors import ModelError
from octavo_text.gguf_metadata import GgufCursor, map_file

if TYPE_CHECKING:
    import torch

_SLICE_ELEMENTS = 1 << 22
"""Maximum elements dequantised at once, so that temporaries stay small beside the weights."""

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
        mapped = map_file(path)
        cursor = GgufCursor(mapped, path)
        self.metadata, num_tensors = cursor.metadata()
        if (parts := self.metadata.get("split.count", 1)) > 1:
            raise ModelError(f"{path}: split.count: got {parts}, allowed: 1 (join them: llama-gguf-split --merge)")
        headers = [_tensor_header(cursor, index) for index in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise ModelError(f"{path}: general.alignment: got {alignment!r}, allowed: a positive integer")
        self.header_bytes = cursor.offset
        self._data = np.frombuffer(mapped, np.uint8)
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
            raise ModelError(
                f"{self.path}: {name}: got tensor type {type_id}, allowed: the types of the package gguf"
            ) from None
        if shape[-1] % block:
            raise ModelError(f"{self.path}: {name}: rows of {shape[-1]} are no multiple of {kind.name}'s block {block}")
        nbytes = math.prod(shape) // block * size
        end = start + offset + nbytes
        if end > len(self._data):
            raise ModelError(
                f"{self.path}: truncated: {name} ends at byte {end}, the file has {len(self._data)}; download it again"
            )
        try:
            dequantize(np.zeros(size, np.uint8), kind)
        except NotImplementedError:
            raise ModelError(f"{self.path}: {name}: got type {kind.name}, which cannot be dequantised") from None
        return GgufTensor(name, shape, kind, start + offset, nbytes)


def _tensor_header(cursor: GgufCursor, index: int) -> tuple[str, tuple[int, ...], int, int]:
    """Read name, row-major shape, type and offset of one tensor."""
    field = f"the header of tensor {index}"
    name = cursor.string(field)
    dimensions = cursor.u32(field)
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise cursor.error(name, f"got {dimensions} dimensions, allowed: 1 to {_MAX_DIMENSIONS}")
    shape = [cursor.u64(field) for _ in range(dimensions)]
    return name, tuple(reversed(shape)), cursor.u32(field), cursor.u64(field)
