"""Philox4x32-10, the counter-based generator of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC'11).

A draw is a function of (seed, choice, position, vocabulary index), without state. So a token does not depend on the
batch, on chunks or on preemption. This module is the plain-torch form; ``cpu.random`` has the same words in Numba.
"""

import torch
from torch import Tensor

MULTIPLIER_0 = 0xD2511F53
MULTIPLIER_1 = 0xCD9E8D57
WEYL_0 = 0x9E3779B9
WEYL_1 = 0xBB67AE85
ROUNDS = 10
_LOW = 0xFFFFFFFF


def _multiply(factor: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """Return the high and low 32 bits of the product, on int64 that never overflows its sign."""
    low_product = factor * (word & 0xFFFF)
    product = factor * (word >> 16) + (low_product >> 16)
    return product >> 16, ((product & 0xFFFF) << 16) | (low_product & 0xFFFF)


def philox4x32(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> Tensor:
    """Return four random 32-bit words for each counter: int64 tensors of any one shape ``-> [..., 4]``."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _multiply(MULTIPLIER_0, c0)
        high1, low1 = _multiply(MULTIPLIER_1, c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + WEYL_0) & _LOW, (k1 + WEYL_1) & _LOW
    return torch.stack([c0, c1, c2, c3], dim=-1)


def random_words(seed: int, choice: int, position: int, count: int) -> Tensor:
    """Return the words of vocabulary indices ``0 .. count - 1``, int64 ``[count]``.

    The counter is (index // 4, choice, position's low word, its high word). The key is the seed, low word first.
    """
    index = torch.arange((count + 3) // 4, dtype=torch.int64)
    same = torch.zeros_like(index)
    counter = (index, same + (choice & _LOW), same + (position & _LOW), same + (position >> 32 & _LOW))
    return philox4x32(counter, (seed & _LOW, seed >> 32 & _LOW)).reshape(-1)[:count]


def gumbel(words: Tensor) -> Tensor:
    """Return Gumbel noise in fp32 from the upper 24 bits of each word.

    The middle of these bits' interval lies strictly between 0 and 1.
    """
    uniform = ((words >> 8).to(torch.float64) + 0.5) * 2.0**-24
    return -torch.log(-torch.log(uniform)).to(torch.float32)
