"""Golden vectors are frozen: an engine and a router of different builds must agree on every byte."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_api.blocks import HASH_BYTES, BlockHash, HashSpace, chain_hashes, low64, next_hash, pack, unpack

GOLDEN_ROOTS = {
    ("m", "float32", 16, "", ""): "88e94d2386f07999803250904b0ebcb1",
    ("embedded://smollm2", "bfloat16", 32, "", ""): "f9d0449b3a1b4ce791218eb19dff433f",
    ("embedded://smollm2", "bfloat16", 32, "lora-a", ""): "d5c96fc990c913ad49fad2680eef940c",
    ("embedded://smollm2", "bfloat16", 32, "", "tenant é"): "5c3205e4fb8e2af8a0edb5eb03218b7f",
}
GOLDEN_CHAIN = [
    "439a913d2f8d298fd161175a0597bbdf",
    "064be00462fa7435f39a8eef450f0852",
    "09c19928cdb64071d9593d6c604473e1",
]
tokens_lists = st.lists(st.integers(0, 2**32 - 1), max_size=100)
block_sizes = st.integers(1, 20)
ROOT = HashSpace("m", "float32", 16).root()


@pytest.mark.parametrize("fields", GOLDEN_ROOTS)
def test_roots_are_as_they_always_were(fields) -> None:
    model_key, kv_dtype, block_size, adapter, salt = fields
    root = HashSpace(model_key, kv_dtype, block_size).root(salt, adapter)
    assert root.hex() == GOLDEN_ROOTS[fields]


def test_chains_are_as_they_always_were() -> None:
    tokens = [0, 1, 255, 256, 65536, 2**32 - 1, 49151, 7, 8, 9, 10, 11, 12]
    assert [block.hex() for block in chain_hashes(ROOT, tokens, 4)] == GOLDEN_CHAIN
    assert low64(bytes.fromhex(GOLDEN_CHAIN[0])) == 10315931655504763459


@given(tokens_lists, block_sizes)
def test_one_hash_for_each_full_block(tokens, block_size) -> None:
    hashes = chain_hashes(ROOT, tokens, block_size)
    assert len(hashes) == len(tokens) // block_size
    assert all(len(block) == HASH_BYTES for block in hashes)


@given(tokens_lists, block_sizes)
def test_a_chain_is_made_step_by_step(tokens, block_size) -> None:
    expected, parent = [], ROOT
    for end in range(block_size, len(tokens) + 1, block_size):
        parent = next_hash(parent, tokens[end - block_size : end])
        expected.append(parent)
    assert chain_hashes(ROOT, tokens, block_size) == expected


@given(tokens_lists, tokens_lists, block_sizes)
def test_equal_prefixes_have_equal_hashes_and_others_have_not(left, right, block_size) -> None:
    shared = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        shared += 1
    pairs = zip(chain_hashes(ROOT, left, block_size), chain_hashes(ROOT, right, block_size), strict=False)
    for index, (a, b) in enumerate(pairs):
        assert (a == b) == (shared >= (index + 1) * block_size)


@given(tokens_lists, tokens_lists, block_sizes)
def test_a_chain_goes_on_from_its_last_hash(tokens, more, block_size) -> None:
    whole = tokens[: len(tokens) // block_size * block_size]
    before = chain_hashes(ROOT, whole, block_size)
    after = chain_hashes(before[-1] if before else ROOT, more, block_size)
    assert before + after == chain_hashes(ROOT, whole + more, block_size)


@given(st.lists(st.tuples(*[st.text(max_size=8)] * 4, st.integers(1, 256)), min_size=2, max_size=2, unique=True))
def test_every_field_of_the_root_counts_and_none_runs_into_the_next(fields) -> None:
    roots = {HashSpace(m, d, b).root(s, a) for m, d, a, s, b in fields}
    assert len(roots) == 2


@given(st.lists(st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES).map(BlockHash)))
def test_unpack_undoes_pack(hashes) -> None:
    assert unpack(pack(hashes)) == hashes


@pytest.mark.parametrize("length", [1, 15, 17, 31])
def test_unpack_refuses_a_part_of_a_hash(length) -> None:
    with pytest.raises(ValueError, match=f"got {length} bytes, allowed: a multiple of 16"):
        unpack(bytes(length))


@pytest.mark.parametrize("token", [-1, 2**32])
def test_tokens_that_no_wire_carries_are_refused(token) -> None:
    with pytest.raises(OverflowError):
        chain_hashes(ROOT, [token] * 16, 16)


def test_processes_agree_whatever_their_hash_seed() -> None:
    code = (
        "from octavo_api.blocks import *; root = HashSpace('m', 'd', 2).root(); "
        "print(chain_hashes(root, [1, 2], 2)[0].hex())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": str(seed)}, capture_output=True, text=True, check=True
        ).stdout
        for seed in (1, 2**32 - 1)
    }
    assert len(seen) == 1
