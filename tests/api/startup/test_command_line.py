from pathlib import Path

import pytest

from octavo_api.errors import ConfigurationError
from octavo_api.startup.command_line import read_assignments, read_secret


def test_values_are_yaml_and_the_last_one_counts() -> None:
    texts = ["a=1", " b =true", "c=", "d=x=y", "a=2", "e=4Gi"]
    assert read_assignments(texts) == {"a": 2, "b": True, "c": None, "d": "x=y", "e": "4Gi"}


@pytest.mark.parametrize("text", ["", "a", "=1", " =1"])
def test_what_has_no_name_or_no_value_says_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--set: got '.*', allowed: NAME=VALUE"):
        read_assignments([text], allowed="NAME=VALUE")


def test_what_is_no_yaml_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"--set a: got '\[', allowed: a YAML value"):
        read_assignments(["a=["])


def test_a_secret_is_read_without_the_space_around_it(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("\n s3cret \n")
    assert read_secret(path) == "s3cret"


@pytest.mark.parametrize(
    ("content", "said"),
    [(b" \n", "got an empty file"), (b"\xff\xfe\xff", "got binary data"), (None, "no such file or directory")],
)
def test_a_file_that_holds_no_secret_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=said) as refused:
        read_secret(path)
    assert refused.value.message.startswith(f"--secret-file: {path}")
