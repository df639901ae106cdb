"""A GGUF file as a checkpoint: the names of transformers, and the rows in their order."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from octavo_engine.weights.checkpoint import Shape
from octavo_engine.weights.fingerprint import fingerprint
from octavo_engine.weights.gguf_config import ROPE_FREQS
from octavo_engine.weights.gguf_file import GgufFile
from octavo_engine.weights.model_config import ModelConfig

if TYPE_CHECKING:
    import torch

Restore = Callable[[str, "torch.Tensor", ModelConfig], "torch.Tensor"]
"""Takes a tensor's name of transformers and its values in the file, and returns the values of transformers."""


class GgufCheckpoint:
    """A ``Checkpoint``. A tensor without a counterpart keeps its GGUF name, so that errors can name it.

    ``names`` maps GGUF names to those of transformers, both without their suffix (``.weight``, ``.bias``). ``{}`` in
    both is the number of a layer.
    """

    def __init__(self, file: GgufFile, config: ModelConfig, names: Mapping[str, str], restore: Restore) -> None:
        self.path = file.path
        self.config = config
        self._file = file
        self._restore = restore
        self._names = {hf_name(name, names): name for name in file.tensors if name != ROPE_FREQS}
        self.shapes: dict[str, Shape] = {new: file.tensors[old].shape for new, old in self._names.items()}

    def read(self, name: str, dtype: "torch.dtype") -> "torch.Tensor":
        return self._restore(name, self._file.read(self._names[name], dtype), self.config)

    def fingerprint(self) -> str:
        return fingerprint([self.path], self._file.header_bytes)


def hf_name(name: str, names: Mapping[str, str]) -> str:
    """Return transformers' name of a GGUF tensor, or the name itself if ``names`` has none."""
    stem, _, suffix = name.rpartition(".")
    block, _, part = stem.removeprefix("blk.").partition(".")
    pattern, layer = (f"blk.{{}}.{part}", block) if stem.startswith("blk.") else (stem, "")
    return f"{names[pattern].format(layer)}.{suffix}" if pattern in names else name
