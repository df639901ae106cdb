"""Streamed completions that outlive what is done to the servers, read side by side."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

_PROMPTS = ("Once upon a time", "The sea was", "In the library", "A printer folded", "Eight leaves", "She read")


@dataclass
class Stream:
    """``error`` is what ended it, where anything but its own end did."""

    base: str
    model: str
    prompt: str
    max_tokens: int
    text: str = ""
    error: str | None = None
    finish_reason: str | None = None
    replica: str = ""
    first_token_at: float | None = None
    ended_at: float | None = None
    _begun: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> "Stream":
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def wait_for_a_token(self, timeout_s: float = 60) -> "Stream":
        assert self._begun.wait(timeout_s), f"no token in {timeout_s} s: {self.error}"
        assert self.error is None, self.error
        return self

    def join(self, timeout_s: float = 300) -> "Stream":
        assert self._thread is not None
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"it hangs after {len(self.text)} characters"
        return self

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
        for choice in chunk["choices"]:
            self.text += choice["text"]
            self.finish_reason = choice["finish_reason"] or self.finish_reason
        if self.first_token_at is None and self.text:
            self.first_token_at = time.monotonic()
            self._begun.set()


def open_streams(base: str, model: str, count: int, max_tokens: int) -> list[Stream]:
    """So many, of prompts that differ, each with its first token shown."""
    prompts = [_PROMPTS[n % len(_PROMPTS)] + " and then" * (n // len(_PROMPTS)) for n in range(count)]
    made = [Stream(base, model, prompt, max_tokens).start() for prompt in prompts]
    return [stream.wait_for_a_token() for stream in made]


def undisturbed(base: str, streams: Sequence[Stream]) -> list[str]:
    """What the same requests give now, one after another, while nothing is done to the servers."""
    return [Stream(base, s.model, s.prompt, s.max_tokens).start().join().text for s in streams]


@dataclass
class Probe:
    """One answer: when it was asked for, and the status, 0 where there was none."""

    at: float
    status: int


@contextmanager
def prober(base: str, model: str, every_s: float = 0.1) -> Iterator[list[Probe]]:
    """Asks for one token at a time, as often as that, until the block ends. An answer may take 5 s."""
    probes: list[Probe] = []
    over = threading.Event()
    body = {"model": model, "prompt": "Once", "max_tokens": 1}

    def ask() -> None:
        while not over.wait(every_s):
            began = time.time()
            try:
                # A connection each: a client that comes now, not one that is known already.
                status = httpx.post(f"{base}/completions", json=body, timeout=5, trust_env=False).status_code
            except httpx.HTTPError:
                status = 0
            probes.append(Probe(began, status))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield probes
    finally:
        over.set()
        thread.join()
