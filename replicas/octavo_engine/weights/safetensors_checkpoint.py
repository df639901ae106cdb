"""A folder of safetensors files as a checkpoint: one file, or shards under ``model.safetensors.index.json``."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from safetensors import SafetensorError, safe_open

from octavo_api.errors import ModelError
from octavo_engine.weights.checkpoint import Shape
from octavo_engine.weights.fingerprint import fingerprint
from octavo_engine.weights.hf_config import read_json
from octavo_engine.weights.model_config import ModelConfig

if TYPE_CHECKING:
    import torch

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FLOATS = ("F64", "F32", "F16", "BF16")


class _Slice(Protocol):
    def get_dtype(self) -> str: ...
    def get_shape(self) -> Sequence[int]: ...


class _File(Protocol):
    """The part of ``safe_open``, which has no types, that this module uses."""

    def keys(self) -> Iterable[str]: ...
    def get_slice(self, name: str) -> _Slice: ...
    def get_tensor(self, name: str) -> "torch.Tensor": ...


class SafetensorsCheckpoint:
    """A ``Checkpoint`` in safetensors files."""

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        self.path = folder
        self.config = config
        self._files = _files(folder)
        self.shapes: dict[str, Shape] = {}
        self._homes: dict[str, Path] = {}
        self._open_files: dict[Path, _File] = {}
        for file in self._files:
            self._read_header(file)

    def read(self, name: str, dtype: "torch.dtype") -> "torch.Tensor":
        home = self._homes[name]
        if home not in self._open_files:
            self._open_files[home] = _open(home, "pt")
        return self._open_files[home].get_tensor(name).to(dtype, copy=True)

    def fingerprint(self) -> str:
        return fingerprint([self.path / "config.json", *self._files])

    def _read_header(self, path: Path) -> None:
        file = _open(path, "numpy")  # "pt" would load torch, which headers do not need
        for name in file.keys():  # noqa: SIM118 (safe_open is no mapping)
            piece = file.get_slice(name)
            if piece.get_dtype() not in _FLOATS:
                raise ModelError(f"{path}: {name}: got {piece.get_dtype()}, allowed: {', '.join(_FLOATS)}")
            if name in self._homes:
                raise ModelError(f"{path}: {name}: a tensor of this name is in another file too")
            self._homes[name] = path
            self.shapes[name] = tuple(piece.get_shape())


def _files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if index.is_file():
        names = read_json(index).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise ModelError(f"{index}: weight_map: required, an object of tensor names and files")
        files = [folder / name for name in sorted(set(map(str, names.values())))]
    elif (folder / _SINGLE).is_file():
        files = [folder / _SINGLE]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder}: the folder holds no .safetensors file")
    if missing := [file.name for file in files if not file.is_file()]:
        raise ModelError(f"{index}: missing files: {', '.join(missing)}")
    return files


def _open(path: Path, framework: str) -> _File:
    try:
        return cast(_File, safe_open(path, framework=framework))
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: truncated or broken: {error}") from error
