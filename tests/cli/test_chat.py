"""``octavo chat`` in a terminal, against a real gateway."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import httpx
import pytest

from octavo_api.errors import StartupError
from octavo_cli.chat import Answer, Endpoint
from octavo_testing.command import OCTAVO
from octavo_testing.waiting import eventually

STATISTICS = re.compile(r"(\d+) prompt tokens \((\d+) cached\) · (\d+) tokens · first token after")


class Terminal:
    """``octavo chat`` under a pseudo terminal."""

    def __init__(self, *arguments: str) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job has it ignored
            os.execv(sys.executable, [*OCTAVO, "chat", *arguments])
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def expect(self, pattern: str) -> re.Match[str]:
        """Reads on until ``pattern`` appears and forgets everything up to its end."""
        found = eventually(
            lambda: f"{pattern} in {self.shown}", lambda: self._read_on(pattern), timeout_s=30, every_s=0
        )
        assert found is not None
        self.shown = self.shown[found.end() :]
        return found

    def _read_on(self, pattern: str) -> re.Match[str] | None:
        if found := re.search(pattern, self.shown):
            return found
        if select.select([self._fd], [], [], 0.1)[0]:
            self.shown += os.read(self._fd, 65536).decode(errors="replace")
        return None

    def exit_status(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self._fd)


@pytest.fixture
def open_terminal(endpoint: str) -> Iterator[Callable[..., Terminal]]:
    eventually("a ready gateway", lambda: ready(endpoint), every_s=0.1)
    opened: list[Terminal] = []

    def open_one(*arguments: str) -> Terminal:
        opened.append(Terminal("--url", endpoint, *arguments))
        return opened[-1]

    yield open_one
    for terminal in opened:
        terminal.close()


def ready(endpoint: str) -> bool:
    try:
        return httpx.get(f"{endpoint}/ready", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def test_an_answer_shows_its_costs_and_the_next_turn_hits_the_cache(open_terminal) -> None:
    terminal = open_terminal("--max-tokens", "40", "--system", "You are brief. " * 20)
    terminal.expect("> ")
    terminal.type("A question?\n")
    first = terminal.expect(STATISTICS)
    terminal.expect("> ")
    terminal.type("Another?\n")
    second = terminal.expect(STATISTICS)
    assert (first[2], first[3]) == ("0", "40")
    assert int(second[1]) > int(first[1])
    assert int(second[2]) >= int(first[1]) // 16 * 16


def test_ctrl_c_stops_the_answer_and_ctrl_d_leaves(open_terminal) -> None:
    terminal = open_terminal()
    terminal.expect("> ")
    terminal.type("Tell me everything.\n")
    terminal.expect(r"everything\.\r\n(?:\x1b\[\?2004l\r)?[^\r\n\x1b]+")
    terminal.type("\x03")
    terminal.expect("stopped")
    terminal.expect("> ")
    terminal.type("\x04")
    assert terminal.exit_status() == 0


def test_nothing_that_listens_is_said_clearly(free_ports: tuple[int, int]) -> None:
    url = f"http://127.0.0.1:{free_ports[0]}"
    done = subprocess.run([*OCTAVO, "chat", "--url", url], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert url in done.stderr
    assert "octavo up" in done.stderr
    assert "Traceback" not in done.stderr


def test_something_else_that_listens_is_said_clearly(endpoint: str) -> None:
    with pytest.raises(StartupError, match="no such path"):
        Endpoint(f"{endpoint}/elsewhere", None).models()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(), "no answer"),
        (Answer(text="a", first_s=0.1), "stopped"),
        (
            Answer(
                usage={
                    "prompt_tokens": 9,
                    "completion_tokens": 5,
                    "prompt_tokens_details": {"cached_tokens": 8},
                },
                first_s=0.5,
                total_s=2.5,
                finish_reason="stop",
            ),
            "9 prompt tokens (8 cached) · 5 tokens · first token after 0.50 s · 2.0 tokens/s",
        ),
        (
            Answer(
                usage={"prompt_tokens": 9, "completion_tokens": 1}, first_s=0.5, total_s=0.5, finish_reason="length"
            ),
            "9 prompt tokens (0 cached) · 1 tokens · first token after 0.50 s · stopped at the length limit",
        ),
    ],
)
def test_statistics(answer: Answer, expected: str) -> None:
    assert answer.statistics() == expected
