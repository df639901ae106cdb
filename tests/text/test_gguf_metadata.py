import random
import struct
from pathlib import Path

import pytest

from octavo_api.errors import ModelError
from octavo_api.startup.model_source import EMBEDDED, locate
from octavo_text.gguf_metadata import read_gguf_metadata

VALUES = {
    "a.bool": True,
    "a.int": 4_000_000_000,
    "a.float": 0.5,
    "a.text": "naïve 日本 \x00",
    "a.texts": ["", "x", "é" * 1000],
    "a.floats": [0.25, -1.0],
    "a.ints": [1, -2, 3],
    "a.bools": [True, False],
}


def test_reads_what_the_reference_writer_wrote(write_gguf) -> None:
    read = read_gguf_metadata(write_gguf(VALUES)).values
    assert {key: read[key] for key in VALUES} == VALUES
    assert read["general.architecture"] == "llama"


@pytest.mark.model
def test_agrees_with_the_reference_reader_on_the_embedded_model() -> None:
    from gguf import GGUFReader

    path = locate(EMBEDDED).path
    theirs = GGUFReader(path).fields
    ours = read_gguf_metadata(path).values
    assert ours.keys() == {key for key in theirs if not key.startswith("GGUF.")}
    for key in ours.keys() - {"tokenizer.ggml.token_type"}:
        assert ours[key] == theirs[key].contents(), key


def test_digest_is_of_the_metadata_only(write_gguf) -> None:
    path = write_gguf(VALUES)
    digest = read_gguf_metadata(path).digest
    path.write_bytes(path.read_bytes() + b"tensors" * 100)
    assert read_gguf_metadata(path).digest == digest
    assert read_gguf_metadata(write_gguf(VALUES | {"a.int": 5})).digest != digest


def test_every_cut_is_an_error(write_gguf) -> None:
    path: Path = write_gguf(VALUES | {"a.texts": ["x"] * 3})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"model\.gguf: (truncated or broken|cannot be read): "):
            read_gguf_metadata(path)


def test_damage_is_an_error_or_another_value_and_nothing_else(write_gguf) -> None:
    path: Path = write_gguf(VALUES | {"a.texts": ["x"] * 3})
    whole = path.read_bytes()
    seed = 0
    print("seed", seed)
    rng = random.Random(seed)
    refused = 0
    for _ in range(500):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.choice((0x00, 0xFF, rng.randrange(256)))
        path.write_bytes(damaged)
        try:
            read_gguf_metadata(path)
        except ModelError:
            refused += 1
    assert refused


def pair(kind: int, value: bytes = b"") -> bytes:
    """A file of one key ``k``."""
    return struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", kind) + value


def array(kind: int, count: int) -> bytes:
    return pair(9, struct.pack("<IQ", kind, count))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cannot mmap an empty file"),
        (b"GGML" + bytes(40), "not a GGUF file: the first four bytes: got b'GGML', allowed: b'GGUF'"),
        (struct.pack("<4sIQQ", b"GGUF", 0x03000000, 0, 0), "GGUF version: got 50331648, allowed: 2, 3 (little-endian)"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "GGUF version: got 1, allowed: 2, 3 (little-endian)"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**60), f"metadata keys: got {2**60}, allowed: at most 65536"),
        (array(4, 2**60), "truncated or broken: k would end at byte"),
        (array(8, 2**60), "truncated or broken: k would end at byte"),
        (pair(13), "k: got metadata type 13, allowed: 0 to 12"),
        (pair(8, struct.pack("<Q", 2**62)), "truncated or broken: k would end at byte"),
        (pair(8, struct.pack("<Q", 1) + b"\xff"), "k: got bytes that are not UTF-8"),
        (array(9, 1), "k: got an array of metadata type 9, allowed: numbers, booleans and strings"),
        (array(77, 1), "k: got an array of metadata type 77, allowed: numbers, booleans and strings"),
    ],
)
def test_says_what_is_wrong(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"broken\.gguf") as error:
        read_gguf_metadata(path)
    assert says in error.value.message


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        read_gguf_metadata(tmp_path / "none.gguf")
