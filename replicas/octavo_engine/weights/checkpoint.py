"""Checkpoint of a model: its tensors under the names of transformers, in any file format."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from octavo_api.errors import ModelError
from octavo_engine.weights.model_config import ModelConfig

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]

_NAMED = 8
"""Maximum number of tensors named in one error."""


class Checkpoint(Protocol):
    """Tensors in files. ``shapes`` are of all tensors there; ``read`` returns a new tensor in ``dtype``."""

    @property
    def path(self) -> Path: ...
    @property
    def config(self) -> ModelConfig: ...
    @property
    def shapes(self) -> Mapping[str, Shape]: ...

    def read(self, name: str, dtype: "torch.dtype") -> "torch.Tensor": ...

    def fingerprint(self) -> str:
        """Return a digest of the files: equal for the same files in any folder, different for others."""


def ignorable(config: ModelConfig) -> frozenset[str]:
    """Return suffixes of tensors that may be there and are not read."""
    return frozenset({".rotary_emb.inv_freq", *(("lm_head.weight",) if config.tie_word_embeddings else ())})


def check_tensors(checkpoint: Checkpoint, expected: Mapping[str, Shape], ignorable: frozenset[str]) -> None:
    """Raise ``ModelError`` naming tensors that are missing, not expected, or of another shape than the model's.

    ``ignorable`` are suffixes of tensors that older checkpoints carry and the model does not need.
    """
    found = checkpoint.shapes
    faults = [f"{name}: missing" for name in expected if name not in found]
    for name, shape in found.items():
        if name in expected and shape != expected[name]:
            faults.append(f"{name}: got shape {list(shape)}, allowed: {list(expected[name])}")
        elif name not in expected and not name.endswith(tuple(ignorable)):
            faults.append(f"{name}: not a tensor of {checkpoint.config.family}")
    if faults:
        shown = "; ".join(faults[:_NAMED])
        more = f"; and {len(faults) - _NAMED} more" if len(faults) > _NAMED else ""
        raise ModelError(f"{checkpoint.path}: {shown}{more}")
