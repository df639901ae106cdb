"""Reader of a model's weights: it checks each tensor, one after the other."""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from octavo_api.errors import ModelError
from octavo_engine.weights.checkpoint import Checkpoint, Shape, check_tensors, ignorable

if TYPE_CHECKING:
    import torch

_LAYER = re.compile(r"model\.layers\.(\d+)\.")


class WeightReader:
    """Reader of a checkpoint's tensors in ``dtype``; only tensors that the model keeps stay in memory.

    Construction compares the checkpoint's tensors with ``expected`` (names and shapes) and raises ``ModelError`` that
    names every kind of difference. ``report`` receives the layer that is being read.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        expected: Mapping[str, Shape],
        dtype: "torch.dtype",
        report: Callable[[str], None],
    ) -> None:
        check_tensors(checkpoint, expected, ignorable(checkpoint.config))
        self._checkpoint = checkpoint
        self._expected = expected
        self._dtype = dtype
        self._report = report
        self._layer = ""

    def tensor(self, name: str) -> "torch.Tensor":
        """Return the tensor; raise ``ModelError`` if it holds NaN or infinity."""
        self._report_layer(name)
        tensor = self._checkpoint.read(name, self._dtype)
        if not tensor.isfinite().all():
            raise ModelError(f"{self._checkpoint.path}: {name}: holds NaN or infinite values")
        return tensor

    def stacked(self, names: list[str]) -> "torch.Tensor":
        """Return the tensors one below the other, without ever holding two copies of all of them."""
        import torch

        shapes = [self._expected[name] for name in names]
        result = torch.empty(sum(shape[0] for shape in shapes), *shapes[0][1:], dtype=self._dtype)
        row = 0
        for name, shape in zip(names, shapes, strict=True):
            result[row : row + shape[0]] = self.tensor(name)
            row += shape[0]
        return result

    def optional_stacked(self, names: list[str]) -> "torch.Tensor | None":
        return self.stacked(names) if names[0] in self._expected else None

    def _report_layer(self, name: str) -> None:
        match = _LAYER.match(name)
        layer = match[1] if match else ""
        if layer and layer != self._layer:
            self._report(f"reading weights {int(layer) + 1}/{self._checkpoint.config.num_layers}")
        self._layer = layer
