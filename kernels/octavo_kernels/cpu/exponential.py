"""Plain arithmetic for exp and tanh, which LLVM vectorises. Functions of the C library would run lane by lane."""

import math

import numpy as np

from octavo_kernels.cpu.jit import jit
from octavo_kernels.cpu.memory import bits_to_float, fma

LOWEST = -126.0  # the exponent of the smallest normal number
# 2**r on [-1/2, 1/2]: the Taylor coefficients ln(2)**n / n!; the first one left out is below 2e-7 / 10
COEFFICIENTS = tuple(math.log(2) ** n / math.factorial(n) for n in range(7))

_LOG2_E = np.float32(math.log2(math.e))
_LOWEST, _HIGHEST = np.float32(LOWEST), np.float32(127.0)
_C1, _C2, _C3, _C4, _C5, _C6 = (np.float32(c) for c in COEFFICIENTS[1:])
_HALF, _ONE, _ZERO, _TWO = np.float32(0.5), np.float32(1.0), np.float32(0.0), np.float32(2.0)
_SQRT_2_OVER_PI, _CUBIC = np.float32(0.7978845608028654), np.float32(0.044715)


@jit()
def exp2(x: np.float32) -> np.float32:
    """Compute 2 ** x in fp32, to about 2e-7; 0 below the smallest normal number (so for -inf), 2 ** 127 at most."""
    clamped = min(max(x, _LOWEST), _HIGHEST)
    whole = np.floor(clamped + _HALF)
    r = clamped - whole
    power = fma(r, fma(r, fma(r, fma(r, fma(r, fma(r, _C6, _C5), _C4), _C3), _C2), _C1), _ONE)
    scale = bits_to_float((np.int32(whole) + np.int32(127)) << np.int32(23))
    return power * scale if x >= _LOWEST else _ZERO


@jit()
def exp(x: np.float32) -> np.float32:
    """Compute e ** x in fp32, by ``exp2``."""
    return exp2(x * _LOG2_E)


@jit()
def silu(x: np.float32) -> np.float32:
    """Compute ``x * sigmoid(x)``."""
    return x / (_ONE + exp(-x))


@jit()
def gelu_tanh(x: np.float32) -> np.float32:
    """Compute ``x * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))) / 2``, as ``x * sigmoid(2 ...)``."""
    inner = _SQRT_2_OVER_PI * (x + _CUBIC * x * x * x)
    return x / (_ONE + exp(-_TWO * inner))
