"""A prompt as keys of the prefix index: hashed once, for router and engine alike."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from octavo_api.blocks import HashSpace, chain_hashes, low64, next_hash, pack


@dataclass(frozen=True, slots=True)
class Chain:
    """Hashes of a prompt.

    ``packed`` holds all block hashes for the engine. ``keys`` holds every ``stride``-th one, for the index.
    ``tail`` is a key for the whole prompt. It serves prompts without keys, and prompts of which replicas hold every
    key.
    """

    packed: bytes
    keys: tuple[int, ...]
    tail: int


def hash_prompt(token_ids: Sequence[int], space: HashSpace, cache_salt: str) -> Chain:
    """Hash the full blocks of a prompt. This takes about 0.7 µs for each block."""
    root = space.root(cache_salt)
    hashes = chain_hashes(root, token_ids, space.block_size)
    rest = token_ids[len(hashes) * space.block_size :]
    packed = pack(hashes)
    words = struct.unpack("<" + "Q8x" * len(hashes), packed)
    tail = low64(next_hash(hashes[-1] if hashes else root, rest))
    return Chain(packed, words[space.stride - 1 :: space.stride], tail)
