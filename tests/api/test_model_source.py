from pathlib import Path

import pytest

from octavo_api.model_source import Format, ModelFiles, locate, normalize_uri


@pytest.mark.parametrize("name", ["plain", "with space", "50%", "a%20b", "日本"])
def test_a_path_is_found_again_whatever_its_characters(tmp_path: Path, name: str) -> None:
    file = tmp_path / name / "model.gguf"
    file.parent.mkdir()
    file.touch()
    assert locate(normalize_uri(str(file))) == ModelFiles(file, Format.GGUF)


def test_a_document_may_name_a_path_with_a_plain_space(tmp_path: Path) -> None:
    file = tmp_path / "my model.gguf"
    file.touch()
    assert locate(f"file://{file}").path == file
