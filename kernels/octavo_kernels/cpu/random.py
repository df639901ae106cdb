"""Philox4x32-10 in Numba, the same words as ``octavo_kernels.philox``, and Gumbel noise from them."""

import math

import numpy as np
from numpy.typing import NDArray

from octavo_kernels.cpu.jit import jit
from octavo_kernels.philox import MULTIPLIER_0, MULTIPLIER_1, ROUNDS, WEYL_0, WEYL_1

_M0, _M1 = np.uint64(MULTIPLIER_0), np.uint64(MULTIPLIER_1)
_W0, _W1 = np.uint64(WEYL_0), np.uint64(WEYL_1)
_32, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


@jit()
def philox4x32(
    c0: np.uint64, c1: np.uint64, c2: np.uint64, c3: np.uint64, k0: np.uint64, k1: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """Return four random words for a counter of four words under a key of two: 32-bit words, held in uint64."""
    for _ in range(ROUNDS):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _32) ^ c1 ^ k0, p1 & _LOW, (p0 >> _32) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0, c1, c2, c3


@jit()
def words_at(seed: int, choice: int, position: int, group: int) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """Return the words of vocabulary indices ``4 * group .. 4 * group + 3``; seed and position are int64."""
    key, place = np.uint64(seed), np.uint64(position)
    return philox4x32(np.uint64(group), np.uint64(choice) & _LOW, place & _LOW, place >> _32, key & _LOW, key >> _32)


@jit()
def gumbel(word: np.uint64) -> np.float32:
    """Return Gumbel noise from the upper 24 bits of a word."""
    uniform = (np.float64(word >> np.uint64(8)) + 0.5) * 2.0**-24
    return np.float32(-math.log(-math.log(uniform)))


@jit()
def fill_words(words: NDArray[np.uint64], seed: int, choice: int, position: int, first_group: int) -> None:
    """Write the words of ``len(words)`` vocabulary indices from ``4 * first_group`` on.

    The length is a multiple of four.
    """
    for group in range(len(words) // 4):
        w0, w1, w2, w3 = words_at(seed, choice, position, first_group + group)
        words[4 * group] = w0
        words[4 * group + 1] = w1
        words[4 * group + 2] = w2
        words[4 * group + 3] = w3
