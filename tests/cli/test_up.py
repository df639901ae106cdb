"""``octavo up`` from the command to the last process: real Ray, the embedded model."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from octavo_serving.local.processes import descendants
from octavo_testing.command import Up
from octavo_testing.waiting import eventually

pytestmark = [pytest.mark.ray, pytest.mark.model, pytest.mark.timeout(150)]

SMALL = ("--set", "engine.kv_cache_memory_bytes=64Mi")
SMALLEST = Path(__file__).parents[2] / "manifests" / "samples" / "01-smallest.yaml"


@pytest.fixture
def up(tmp_path: Path, free_ports: tuple[int, int]) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*arguments: str) -> Up:
        started.append(Up.start(tmp_path / f"up-{len(started)}.txt", free_ports, *arguments))
        return started[-1]

    yield start
    for one in started:
        one.end()


def test_two_replicas_answer_and_ctrl_c_lets_an_answer_end(up: Callable[..., Up], tmp_path: Path) -> None:
    keys = tmp_path / "my keys"
    keys.write_text("# tenants\nreader sk-0123456789\n")
    service = up("--replicas", "2", "--api-key-file", str(keys), *SMALL)
    service.wait_for("Press Ctrl-C to stop.")
    assert httpx.get(f"{service.url}/v1/models", trust_env=False).status_code == 401
    line = re.search(r"^curl .*$", service.said(), re.MULTILINE)
    assert line is not None
    assert "sk-0123456789" not in line[0]
    answered = subprocess.run(["bash", "-c", f"{line[0]} -s"], capture_output=True, text=True, timeout=60, check=True)
    message = json.loads(answered.stdout)["choices"][0]["message"]
    assert message["role"] == "assistant"
    assert message["content"]

    started = descendants(service.process.pid)
    assert len(started) > 5
    body = {"model": "smollm2", "prompt": "Once", "max_tokens": 60, "ignore_eos": True, "stream": True}
    headers = {"Authorization": "Bearer sk-0123456789"}
    url = f"{service.url}/v1/completions"
    with httpx.stream("POST", url, json=body, headers=headers, timeout=30, trust_env=False) as response:
        assert response.status_code == 200
        lines = response.iter_lines()
        next(lines)
        os.killpg(service.process.pid, signal.SIGINT)  # as a terminal does
        assert "data: [DONE]" in list(lines)
    assert service.process.wait(30) == 0
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    assert service.left_behind() == []


def test_a_second_ctrl_c_ends_it_while_an_answer_runs(up: Callable[..., Up]) -> None:
    service = up("-f", str(SMALLEST), *SMALL)
    service.wait_for("Press Ctrl-C to stop.")
    assert "another client" not in service.said()
    body = {"model": "smallest", "prompt": "Once", "max_tokens": 8000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{service.url}/v1/completions", json=body, timeout=30, trust_env=False) as response:
        next(response.iter_lines())
        started = descendants(service.process.pid)
        service.process.send_signal(signal.SIGINT)
        time.sleep(1)
        assert service.process.poll() is None
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(30) == 0
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    assert service.left_behind() == []


def test_stopped_while_it_starts_it_leaves_nothing_behind(up: Callable[..., Up]) -> None:
    service = up(*SMALL)
    service.wait_for("Engine 0/1")
    started = descendants(service.process.pid)
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(30) == 0
    assert "Stopped before the service was ready" in service.said()
    assert "SIGTERM" not in service.said()
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    assert service.left_behind() == []


def test_a_signal_to_the_whole_group_while_ray_starts_ends_it_at_once(up: Callable[..., Up]) -> None:
    service = up(*SMALL)
    service.wait_for("Imports")

    def gcs_servers() -> list[int]:
        assert service.process.poll() is None, service.said()
        return [pid for pid in descendants(service.process.pid) if name_of(pid) == "gcs_server"]

    gcs = eventually("a GCS server", gcs_servers, every_s=0.01)
    assert os.getpgid(gcs[0]) != service.process.pid
    os.killpg(service.process.pid, signal.SIGTERM)
    assert service.process.wait(25) == 0
    assert "Stopped before the service was ready" in service.said()
    assert service.left_behind() == []


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def write_broken_model(folder: Path) -> Path:
    """Write a small Llama whose headers, which are read first, are right, and whose last norm is not."""
    from safetensors.torch import load_file, save_file

    from octavo_testing import weights

    weights.write(folder, "LlamaForCausalLM")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, file)
    return folder


def test_a_replica_that_cannot_start_says_why_once(up: Callable[..., Up], tmp_path: Path) -> None:
    service = up(str(write_broken_model(tmp_path / "broken")))
    assert service.process.wait(100) == 1
    said = service.said()
    assert "Traceback" not in said
    assert said.count("model.norm.weight: holds NaN or infinite values") == 1
    logs = re.search(r"^Logs: (.*)$", said, re.MULTILINE)
    assert logs is not None
    assert any(Path(logs[1]).rglob("*.log"))
    shutil.rmtree(logs[1])
    assert service.left_behind() == []
