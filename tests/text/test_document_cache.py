import threading
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from octavo_text.document_cache import cache_folder, cached_tokenizer

DOCUMENT = Tokenizer(models.WordLevel({"a": 0, "b": 1}, "a")).to_str()


class Convert:
    def __init__(self, document: str = DOCUMENT) -> None:
        self.calls = 0
        self.document = document

    def __call__(self) -> str:
        self.calls += 1
        return self.document


def test_converts_once(tmp_path: Path) -> None:
    convert = Convert()
    for _ in range(3):
        assert cached_tokenizer(tmp_path / "new", "digest", convert).get_vocab_size() == 2
    assert convert.calls == 1
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["digest-1.json"]


def test_another_digest_is_another_document(tmp_path: Path) -> None:
    convert = Convert()
    cached_tokenizer(tmp_path, "one", convert)
    cached_tokenizer(tmp_path, "two", convert)
    assert convert.calls == 2


def test_works_where_nothing_can_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    convert = Convert()
    for _ in range(2):
        assert cached_tokenizer(blocked / "below", "digest", convert).get_vocab_size() == 2
    assert convert.calls == 2


def test_leaves_nothing_behind_where_the_name_is_taken(tmp_path: Path) -> None:
    (tmp_path / "digest-1.json").mkdir()
    assert cached_tokenizer(tmp_path, "digest", Convert()).get_vocab_size() == 2
    assert [path.name for path in tmp_path.iterdir()] == ["digest-1.json"]


@pytest.mark.parametrize("damage", ["", "{}", DOCUMENT[: len(DOCUMENT) // 2], "\x00\xff"])
def test_damaged_document_is_converted_again(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "digest-1.json"
    path.write_text(damage, encoding="latin-1")
    assert cached_tokenizer(tmp_path, "digest", Convert()).get_vocab_size() == 2
    assert path.read_text() == DOCUMENT


def test_a_document_that_is_no_tokenizer_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"expected|missing|data"):
        cached_tokenizer(tmp_path, "digest", Convert("{}"))
    assert not list(tmp_path.iterdir())


def test_writers_race_without_harm(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)
    sizes = []

    def start() -> None:
        barrier.wait()
        sizes.append(cached_tokenizer(tmp_path, "digest", Convert()).get_vocab_size())

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sizes == [2] * 8
    assert [path.name for path in tmp_path.iterdir()] == ["digest-1.json"]


def test_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "octavo" / "tokenizers"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "octavo" / "tokenizers"
