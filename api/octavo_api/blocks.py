"""Chain hashes of KV cache blocks for engine and router, and the digest with which they compare their sets.

``root = H(schema ‖ model ‖ kv_dtype ‖ block_size ‖ adapter ‖ salt)`` with every field tagged and length-prefixed,
``h_i = H(h_{i-1} ‖ tokens_i as little-endian u32)``, ``H`` = BLAKE2b with a digest of 128 bits. A block's hash stands
for its tokens and all earlier ones, for one model, one KV dtype, one adapter and one tenant's salt. Engines use all 128
bits, because a collision would give a wrong answer. Routers keep the low 64 bits, because a collision only selects a
worse replica. Golden vectors are in the tests. A change of any byte requires another ``SCHEMA``.
"""

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NewType

BlockHash = NewType("BlockHash", bytes)
"""16 bytes."""

SCHEMA = "octavo/1"
HASH_BYTES = 16

WORD = 2**64
"""Modulus of the sum of a ``Digest``."""


@dataclass(frozen=True, slots=True)
class HashSpace:
    """Parameters that must be equal for the hashes of two replicas to mean the same blocks.

    A router keeps every ``stride``-th hash of a chain. ``stride`` changes no hash.
    """

    model_key: str
    kv_dtype: str
    block_size: int
    stride: int = 1

    @property
    def tokens_per_key(self) -> int:
        """Number of tokens between two hashes that a router keeps."""
        return self.block_size * self.stride

    def root(self, cache_salt: str = "", adapter: str = "") -> BlockHash:
        """Return the hash before the first block of every chain with this salt and adapter."""
        fields = {
            "schema": SCHEMA,
            "model": self.model_key,
            "kv_dtype": self.kv_dtype,
            "block_size": str(self.block_size),
            "adapter": adapter,
            "salt": cache_salt,
        }
        parts = []
        for tag, text in fields.items():
            for piece in (tag.encode(), text.encode()):
                parts.append(struct.pack("<I", len(piece)))
                parts.append(piece)
        return _digest(b"".join(parts))


@dataclass(frozen=True, slots=True)
class Digest:
    """Digest of a set of hashes in two numbers: ``xor``, and ``sum`` modulo 2^64, of the low 64 bits of each.

    Both are 0 for the empty set, and both follow an added or removed hash in O(1).
    """

    xor: int = 0
    sum: int = 0

    @classmethod
    def of(cls, hashes: Iterable[BlockHash]) -> "Digest":
        """Return the digest of all ``hashes``, computed from the beginning."""
        xor = total = 0
        for block_hash in hashes:
            key = low64(block_hash)
            xor ^= key
            total += key
        return cls(xor, total % WORD)


def _digest(data: bytes) -> BlockHash:
    return BlockHash(blake2b(data, digest_size=HASH_BYTES).digest())


def next_hash(parent: BlockHash, tokens: Sequence[int]) -> BlockHash:
    """Return the hash of the full block of ``tokens`` after ``parent``."""
    return _digest(parent + _little_endian(tokens))


def chain_hashes(parent: BlockHash, tokens: Sequence[int], block_size: int) -> list[BlockHash]:
    """Return one hash for each *full* block of ``tokens``. A partial block at the end has none.

    ``parent`` is the root, or the last hash of a chain that ``tokens`` continue.
    """
    data = _little_endian(tokens)
    stride = 4 * block_size
    hashes = []
    for start in range(0, len(data) - stride + 1, stride):
        parent = _digest(parent + data[start : start + stride])
        hashes.append(parent)
    return hashes


def low64(block_hash: bytes) -> int:
    """Return the part of a hash that a router keeps: its first 8 bytes as a little-endian integer."""
    return int.from_bytes(block_hash[:8], "little")


def pack(hashes: Sequence[BlockHash]) -> bytes:
    """Join hashes for the wire. ``unpack`` is the inverse."""
    return b"".join(hashes)


def unpack(data: bytes) -> list[BlockHash]:
    """Split joined hashes. Raise ``ValueError`` if ``data`` is not a whole number of hashes."""
    if len(data) % HASH_BYTES:
        raise ValueError(f"hashes: got {len(data)} bytes, allowed: a multiple of {HASH_BYTES}")
    return list(_slices(data))


def _slices(data: bytes) -> Iterator[BlockHash]:
    for start in range(0, len(data), HASH_BYTES):
        yield BlockHash(data[start : start + HASH_BYTES])


def _little_endian(tokens: Sequence[int]) -> bytes:
    words = array("I", tokens)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()
