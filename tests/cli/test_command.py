"""The command itself: cheap to ask, clear when it cannot start."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from octavo_api.errors import PortInUse
from octavo_cli.main import main
from octavo_cli.ports import require_free

OCTAVO = [sys.executable, "-c", "from octavo_cli.main import main; main()"]


def octavo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*OCTAVO, *arguments], capture_output=True, text=True, timeout=120, check=False)


def imported(*arguments: str) -> set[str]:
    script = (
        "import sys\n"
        "from octavo_cli.main import group\n"
        f"try: group({list(arguments)!r})\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize("arguments", [("--help",), ("up", "--help"), ("chat", "--help"), ("version",)])
def test_help_loads_neither_torch_nor_ray(arguments: tuple[str, ...]) -> None:
    packages = {"octavo_engine", "octavo_router", "octavo_text"}
    assert not imported(*arguments) & {"torch", "ray", "numba", "transformers", *packages}


def test_help_lists_every_command() -> None:
    done = octavo("--help")
    assert done.returncode == 0
    for name in ("up", "chat", "version"):
        assert name in done.stdout


def test_an_unknown_command_is_refused() -> None:
    assert octavo("down").returncode == 2


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert octavo("version").stdout == f"octavo {version('octavo')}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("up", "-f", "/nowhere/x.yaml"), "/nowhere/x.yaml: no such file"),
        (("up", "--set", "engine.max_num_seqs=0"), "--set engine.max_num_seqs: got 0"),
        (("up", "/nowhere/model"), "/nowhere/model: no such file or folder"),
        (("up", "ftp://x/y"), "spec.model.uri"),
        (("up", "--api-key-file", "/nowhere/keys"), "/nowhere/keys"),
    ],
)
def test_what_cannot_start_says_why_in_one_message(
    arguments: tuple[str, ...], message: str, free_ports, monkeypatch, capsys
) -> None:
    http, grpc = free_ports
    monkeypatch.setattr("sys.argv", ["octavo", *arguments, "--port", str(http), "--grpc-port", str(grpc)])
    with pytest.raises(SystemExit) as end:
        main()
    shown = capsys.readouterr()
    assert end.value.code == 1
    assert message in shown.err
    assert not shown.out


def test_a_port_that_is_taken_is_named_with_its_process() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"HTTP port {port}: address already in use by .* \(pid \d+\)"):
            require_free("127.0.0.1", port, "HTTP")
    require_free("127.0.0.1", port, "HTTP")


def test_up_checks_its_ports_before_anything_else(free_ports) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        done = octavo("up", "--port", str(port), "--grpc-port", str(free_ports[1]))
    assert done.returncode == 1
    assert f"HTTP port {port}: address already in use" in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


def test_more_cpus_than_the_machine_has_are_refused(tmp_path: Path, free_ports) -> None:
    document = tmp_path / "big.yaml"
    document.write_text(
        "metadata: {name: big}\nspec:\n  model: {uri: 'embedded://smollm2'}\n  replicas: 2\n"
        "  resources: {limits: {cpu: 4000}}\n"
    )
    done = octavo("up", "-f", str(document), "--port", str(free_ports[0]), "--grpc-port", str(free_ports[1]))
    assert done.returncode == 1
    assert "spec.resources.limits.cpu: got 4000" in done.stderr
