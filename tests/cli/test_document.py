"""From flags and files to one checked document."""

import re
from pathlib import Path

import pytest

from octavo_api.errors import ConfigurationError
from octavo_api.startup.model_source import EMBEDDED
from octavo_cli.document import Flags, parse_setting, read_deployment

DOCUMENT = """
apiVersion: serving.octavo.dev/v1alpha1
kind: ServingDeployment
metadata: {name: books, namespace: prod}
spec:
  model: {uri: "hf://library/books"}
  replicas: 2
  engine: {maxNumSeqs: 8, blockSize: 32}
"""


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "books.yaml"
    path.write_text(DOCUMENT)
    return path


def test_nothing_given_serves_the_embedded_model() -> None:
    deployment = read_deployment(Flags())
    assert deployment.spec.model.uri == EMBEDDED
    assert deployment.served_name == "smollm2"
    assert deployment.spec.replicas == 1
    assert (deployment.spec.endpoint.http.port, deployment.spec.endpoint.grpc.port) == (8000, 9000)


@pytest.mark.parametrize(
    ("model", "served_name", "name"),
    [
        ("hf://HuggingFaceTB/SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct", "smollm2-135m-instruct"),
        ("/models/Q.gguf", "Q", "q"),
        ("/models/7B chat/", "7B chat", "model-7b-chat"),
        ("/models/" + "x" * 60, "x" * 60, "x" * 40),
    ],
)
def test_a_model_names_itself(model: str, served_name: str, name: str) -> None:
    deployment = read_deployment(Flags(model=model))
    assert (deployment.served_name, deployment.metadata.name) == (served_name, name)


def test_flags_win_over_the_file_and_leave_the_rest_of_it(document: Path) -> None:
    flags = Flags(
        file=document,
        replicas=3,
        http_port=1234,
        served_name="tales",
        settings=("engine.max_num_seqs=4", "router.policy=round_robin", "engine.kv_cache_memory_bytes=64Mi"),
    )
    deployment = read_deployment(flags)
    assert deployment.spec.replicas == 3
    assert deployment.spec.endpoint.http.port == 1234
    assert deployment.served_name == "tales"
    assert deployment.spec.engine.max_num_seqs == 4
    assert deployment.spec.engine.block_size == 32
    assert deployment.spec.engine.kv_cache_memory_bytes == 64 * 2**20
    assert deployment.spec.router.policy == "round_robin"
    assert deployment.spec.model.uri == "hf://library/books"


def test_a_model_on_the_command_line_replaces_the_files(document: Path) -> None:
    assert read_deployment(Flags(file=document, model="hf://a/b")).spec.model.uri == "hf://a/b"


@pytest.mark.parametrize("text", ["engine.max_num_seqs", "max_num_seqs=4", "operator.x=1", "engine.=1", "=1", ""])
def test_a_setting_that_cannot_be_read_says_what_is_allowed(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"allowed: engine\.NAME=VALUE or router\.NAME=VALUE"):
        parse_setting(text)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("engine.max_num_seq=4", "--set engine.max_num_seq: unknown field; did you mean max_num_seqs?"),
        ("engine.max_num_seqs=many", "--set engine.max_num_seqs: got 'many'"),
        ("engine.max_model_len=0", "--set engine.max_model_len: got 0, allowed: at least 16"),
        ("engine.maxModelLen=0", "--set engine.maxModelLen: got 0"),
        ("router.policy=best", "--set router.policy: got 'best'"),
    ],
)
def test_a_wrong_setting_is_named(setting: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        read_deployment(Flags(settings=(setting,)))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file"):
        read_deployment(Flags(file=tmp_path / "none.yaml"))


@pytest.mark.parametrize("name", ["", "a\nb", "a\n", "\x1b[31m", "a\x85", "x" * 254])
def test_a_served_name_that_no_request_could_carry_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"spec\.model\.servedName: got "):
        read_deployment(Flags(served_name=name))
