"""bf16 products by oneDNN, where the processor multiplies bf16 itself: twice the arithmetic of fp32 for many rows.

The operators are private to torch, so they are tried before they are used. On a processor without bf16 arithmetic
oneDNN emulates it, at a quarter of the speed of ``linear.PanelLinear``; and rows may differ in their last bit with
their number. So this is for native bf16, many rows, and no promise of batch invariance.
"""

import logging

import torch
import torch.nn.functional as F
from llvmlite import binding as llvm
from torch import Tensor

from octavo_kernels.cpu.linear import PanelLinear
from octavo_kernels.cpu.pool import ThreadPool

log = logging.getLogger(__name__)

# Below this many rows reading the weights is the bound, and the panels read them faster.
MIN_ROWS = 16
_TOLERANCE = 2e-2  # of the largest output: both round to bf16


def multiplies_bf16() -> bool:
    """Whether the processor has bf16 dot products (AVX-512 BF16 or AMX)."""
    features = llvm.get_host_cpu_features()
    return bool(features.get("avx512bf16") or features.get("amx-bf16"))


def unusable_reason() -> str | None:
    """None where torch's packed linear operators exist and agree with ``F.linear``, else what is wrong."""
    x, weight = torch.linspace(-1, 1, 20 * 48).view(20, 48).bfloat16(), torch.linspace(-1, 1, 32 * 48).view(32, 48)
    weight = weight.bfloat16()
    try:
        result = _apply(x, _pack(weight), None)
    except (AttributeError, RuntimeError, TypeError) as error:
        return f"torch's packed linear operators do not answer: {error}"
    expected = F.linear(x.float(), weight.float())
    if not torch.allclose(result.float(), expected, atol=_TOLERANCE * float(expected.abs().max())):
        return "torch's packed linear operators disagree with F.linear"
    return None


def _pack(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight, MIN_ROWS)


def _apply(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


class TwoWayLinear:
    """Panels below ``MIN_ROWS`` rows, oneDNN from there on: a second copy of the weight, for twice the speed."""

    def __init__(self, weight: Tensor, bias: Tensor | None, pool: ThreadPool) -> None:
        self.out_features, self.in_features = weight.shape
        self._panels = PanelLinear(weight, bias, weight.dtype, pool)
        self._packed, self._bias = _pack(weight), bias

    def __call__(self, x: Tensor) -> Tensor:
        return self._panels(x) if x.shape[0] < MIN_ROWS else _apply(x, self._packed, self._bias)
