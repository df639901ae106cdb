"""A streamed completion that runs beside a test."""

import json
import threading
from dataclasses import dataclass, field

import httpx

TIMEOUT_S = 50.0


@dataclass
class Stream:
    """One streamed completion, read in a thread.

    ``error`` names what ended the stream before its last token.
    """

    url: str
    model: str
    max_tokens: int
    prompt: str = "Once upon a time"
    text: str = ""
    completion_tokens: int = 0
    error: str | None = None
    started: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def start(self) -> "Stream":
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self.started.wait(TIMEOUT_S), self.error
        return self

    def join(self) -> "Stream":
        assert self.thread is not None
        self.thread.join(TIMEOUT_S)
        assert not self.thread.is_alive(), "the stream hangs"
        return self

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
                httpx.Client(timeout=TIMEOUT_S, trust_env=False) as client,
                client.stream("POST", f"{self.url}/v1/completions", json=body) as response,
            ):
                if response.status_code != 200:
                    self.error = f"{response.status_code} {response.read().decode()}"
                    return
                for line in response.iter_lines():
                    self._read(line)
        except httpx.HTTPError as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self.started.set()

    def _read(self, line: str) -> None:
        if not line.startswith("data: {"):
            return
        chunk = json.loads(line.removeprefix("data: "))
        if "error" in chunk:
            self.error = chunk["error"]["message"]
            return
        if usage := chunk.get("usage"):
            self.completion_tokens = usage["completion_tokens"]
        self.text += "".join(choice["text"] for choice in chunk["choices"])
        self.started.set()
