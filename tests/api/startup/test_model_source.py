import os
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from octavo_api.errors import ModelError
from octavo_api.startup import model_source
from octavo_api.startup.model_source import Format, ModelFiles, locate, normalize_uri


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


@pytest.fixture
def claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Mount one claim with two models, as in a pod."""
    monkeypatch.setattr(model_source, "CLAIMS", tmp_path)
    for file in ("books/small/config.json", "books/deep/model one.gguf"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("pvc://books/small", ModelFiles(Path("books/small"), Format.SAFETENSORS)),
        ("pvc://books//small/", ModelFiles(Path("books/small"), Format.SAFETENSORS)),
        ("pvc://books/deep/model%20one.gguf", ModelFiles(Path("books/deep/model one.gguf"), Format.GGUF)),
        ("pvc://books/deep", ModelFiles(Path("books/deep/model one.gguf"), Format.GGUF)),
    ],
)
def test_a_claim_is_found_where_it_is_mounted(claims: Path, uri: str, expected: ModelFiles) -> None:
    assert locate(uri) == ModelFiles(claims / expected.path, expected.format)


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("pvc://other/small", "the claim other is not mounted"),
        ("pvc://books/none", "no such file or folder"),
        ("pvc://books/../books/small", "PATH inside the claim"),
        ("pvc://books/%2e%2e/secret", "PATH inside the claim"),
        ("pvc://../x", "PATH inside the claim"),
        ("pvc:///small", "PATH inside the claim"),
    ],
)
def test_what_a_claim_does_not_hold_is_said(claims: Path, uri: str, says: str) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        locate(uri)
    assert uri in caught.value.message


def test_a_mounted_model_reaches_for_no_network(claims: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", connect)
    assert locate("pvc://books/small").path.is_dir()
    assert locate((claims / "books" / "small").as_uri()).path.is_dir()


class Hub(BaseHTTPRequestHandler):
    """A hub without models. It records the token of each request."""

    shown: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.shown.append(self.headers.get("authorization", ""))
        self.send_response(404)
        self.send_header("content-length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


LOOK = """
import sys
from pathlib import Path
from octavo_api.errors import ModelError
from octavo_api.startup.model_source import locate
for token in ("hf_first", "hf_second"):
    Path(sys.argv[1]).write_text(token + "\\n")
    try:
        locate("hf://missing/nothing")
    except ModelError as error:
        print(error.message)
"""


@pytest.mark.parametrize(("offline", "shown"), [("0", {"Bearer hf_first", "Bearer hf_second"}), ("1", set())])
def test_the_token_file_is_read_at_each_look_and_not_at_all_offline(
    tmp_path: Path, offline: str, shown: set[str]
) -> None:
    Hub.shown.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    token = tmp_path / "token"
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("HF_") and "proxy" not in name.lower()
    }
    environment = {
        **kept,
        "HF_HOME": str(tmp_path / "cache"),
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_TOKEN_PATH": str(token),
        "HF_HUB_OFFLINE": offline,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", LOOK, str(token)], env=environment, capture_output=True, text=True, check=True
        )
    finally:
        server.shutdown()
        server.server_close()
    assert set(Hub.shown) - {""} == shown
    assert bool(Hub.shown) == bool(shown)
    assert done.stdout.count("hf://missing/nothing: download failed") == 2
    assert "hf_first" not in done.stdout + done.stderr
