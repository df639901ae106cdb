"""Golden vectors from Random123's known-answer tests (kat_vectors, philox4x32 10)."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_kernels.cpu import random as cpu_random
from octavo_kernels.philox import gumbel, philox4x32, random_words

ONES = 0xFFFFFFFF
GOLDEN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), GOLDEN)
def test_both_forms_give_the_published_words(counter, key, words):
    assert tuple(philox4x32(tuple(torch.tensor(c) for c in counter), key).tolist()) == words
    assert tuple(int(w) for w in cpu_random.philox4x32(*(np.uint64(n) for n in (*counter, *key)))) == words


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 63), st.integers(0, 2**40))
def test_both_forms_number_the_vocabulary_alike(seed, choice, position):
    signed = seed - 2**64 if seed >= 2**63 else seed
    words = random_words(seed, choice, position, 22).tolist()
    assert [int(cpu_random.words_at(signed, choice, position, v // 4)[v % 4]) for v in range(22)] == words


def test_noise_is_finite_at_the_ends_of_the_range():
    words = torch.tensor([0, 0xFFFFFFFF])
    noise = gumbel(words)
    assert noise.isfinite().all()
    assert [float(cpu_random.gumbel(np.uint64(w))) for w in words.tolist()] == pytest.approx(noise.tolist())
    assert float(noise[1]) < 17.4  # the sampler's bound
