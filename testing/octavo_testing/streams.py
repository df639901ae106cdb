"""Streamed completions that run beside a test, and outlive the changes that it makes."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from octavo_testing.waiting import eventually

_PROMPTS = ("Once upon a time", "The sea was", "In the library", "A printer folded", "Eight leaves", "She read")


@dataclass
class Stream:
    """One completion at an OpenAI base address, read in a thread.

    ``error`` names what ended the stream before its last token.
    """

    base: str
    model: str
    prompt: str
    max_tokens: int
    text: str = ""
    completion_tokens: int = 0
    error: str | None = None
    finish_reason: str | None = None
    replica: str = ""
    first_token_at: float | None = None
    ended_at: float | None = None
    _begun: threading.Event = field(default_factory=threading.Event)
    _closed: bool = False
    _thread: threading.Thread | None = None

    def start(self) -> "Stream":
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def begin(self, timeout_s: float = 60) -> "Stream":
        """Start it, and return when its first token is there."""
        self.start()
        assert self._begun.wait(timeout_s), f"no token in {timeout_s} s: {self.error}"
        assert self.error is None, self.error
        return self

    def join(self, timeout_s: float = 60) -> "Stream":
        assert self._thread is not None
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"it hangs after {len(self.text)} characters"
        return self

    def wait_for_text(self, length: int, timeout_s: float = 300) -> "Stream":
        eventually(
            lambda: f"{len(self.text)} of {length} characters",
            lambda: len(self.text) >= length or not self.runs,
            timeout_s,
            every_s=0.1,
        )
        return self

    def close(self) -> None:
        """End it from this side."""
        self._closed = True
        self.join(30)

    @property
    def runs(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        body = {
            "model": self.model,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            with (
                httpx.Client(timeout=120, trust_env=False) as client,
                client.stream(
                    "POST", f"{self.base}/completions", json=body, headers={"x-octavo-explain": "1"}
                ) as answer,
            ):
                if answer.status_code != 200:
                    self.error = f"{answer.status_code} {answer.read().decode()}"
                    return
                for line in answer.iter_lines():
                    self._take(line)
                    if self._closed:
                        return
            if self.error is None and self.finish_reason is None:
                self.error = "the connection ended before the stream"
        except httpx.HTTPError as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self.ended_at = time.monotonic()
            self._begun.set()

    def _take(self, line: str) -> None:
        if not line.startswith("data: {"):
            return
        chunk = json.loads(line.removeprefix("data: "))
        if "error" in chunk:
            self.error = chunk["error"]["message"]
            return
        self.replica = (chunk.get("octavo") or {}).get("replica", self.replica)
        if usage := chunk.get("usage"):
            self.completion_tokens = usage["completion_tokens"]
        for choice in chunk["choices"]:
            self.text += choice["text"]
            self.finish_reason = choice["finish_reason"] or self.finish_reason
        if self.first_token_at is None and self.text:
            self.first_token_at = time.monotonic()
            self._begun.set()


def open_streams(base: str, model: str, count: int, max_tokens: int) -> list[Stream]:
    """Open streams with different prompts side by side, each with its first token shown."""
    prompts = [_PROMPTS[n % len(_PROMPTS)] + " and then" * (n // len(_PROMPTS)) for n in range(count)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda prompt: Stream(base, model, prompt, max_tokens).begin(), prompts))


def none_was_cut(streams: Sequence[Stream], after_s: float = 30) -> None:
    """Read them for some seconds and end them; each equals an undisturbed run of the same request."""
    time.sleep(after_s)
    assert [stream.error for stream in streams] == [None] * len(streams)
    assert all(stream.runs for stream in streams), "one ended by itself: it did not outlive the change"
    for stream in streams:
        stream.close()
    again = [Stream(s.base, s.model, s.prompt, s.max_tokens).start() for s in streams]
    for stream, run in zip(streams, again, strict=True):
        run.wait_for_text(len(stream.text)).close()
        assert run.text[: len(stream.text)] == stream.text


@dataclass(frozen=True)
class Probe:
    """One answer: when it was asked for and when it came, and the status, 0 where none came."""

    at: float
    told_at: float
    status: int


@contextmanager
def prober(base: str, model: str, every_s: float = 0.1) -> Iterator[list[Probe]]:
    """Asks for one token so often until the block ends, whether the ones before are answered or not.

    An answer may take 5 s. The probes come in the order in which they ended.
    """
    probes: list[Probe] = []
    over = threading.Event()
    body = {"model": model, "prompt": "Once", "max_tokens": 1}

    def ask() -> None:
        began = time.time()
        try:
            # A connection each: a client that comes now, not one that is known already.
            status = httpx.post(f"{base}/completions", json=body, timeout=5, trust_env=False, verify=False).status_code
        except httpx.HTTPError:
            status = 0
        probes.append(Probe(began, time.time(), status))

    def ask_again_and_again() -> None:
        with ThreadPoolExecutor(round(2 * 5 / every_s)) as pool:
            while not over.wait(every_s):
                pool.submit(ask)

    thread = threading.Thread(target=ask_again_and_again, daemon=True)
    thread.start()
    try:
        yield probes
    finally:
        over.set()
        thread.join()
