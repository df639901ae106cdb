"""``octavo chat``: a conversation with a running endpoint, with the cost of each answer after it."""

import json
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import httpx

from octavo_api.errors import ConfigurationError, OctavoError, StartupError

_CONNECT_TIMEOUT_S = 5.0


class AnswerFailed(OctavoError):
    """Error of the endpoint for one turn. The conversation can continue."""


@dataclass(slots=True)
class Answer:
    """One turn as it arrives. Times are in seconds since the request was sent."""

    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    first_s: float | None = None
    total_s: float = 0.0

    def statistics(self) -> str:
        prompt, completion = self.usage.get("prompt_tokens"), self.usage.get("completion_tokens")
        if prompt is None or completion is None or self.first_s is None:
            return "stopped" if self.first_s is not None else "no answer"
        cached = (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        parts = [
            f"{prompt} prompt tokens ({cached} cached)",
            f"{completion} tokens",
            f"first token after {self.first_s:.2f} s",
        ]
        if completion > 1 and self.total_s > self.first_s:
            parts.append(f"{(completion - 1) / (self.total_s - self.first_s):.1f} tokens/s")
        if self.finish_reason == "length":
            parts.append("stopped at the length limit")
        return " · ".join(parts)


class Endpoint:
    """Client of an OpenAI endpoint."""

    def __init__(self, url: str, api_key: str | None, max_tokens: int | None = None) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S)
        self._limits = {} if max_tokens is None else {"max_tokens": max_tokens}
        self.url = url.rstrip("/").removesuffix("/v1")
        self._client = httpx.Client(base_url=self.url, headers=headers, timeout=timeout, trust_env=False)

    def models(self) -> list[str]:
        """Return the names of the models.

        Raise ``StartupError`` if nothing listens, or if it is not an OpenAI endpoint.
        """
        try:
            response = self._client.get("/v1/models", timeout=_CONNECT_TIMEOUT_S)
        except httpx.TransportError as error:
            raise StartupError(f"{self.url}: {error}; is `octavo up` running?") from None
        if not response.is_success:
            raise StartupError(f"{self.url}: {_message(response)}")
        try:
            return [model["id"] for model in response.json()["data"]]
        except (ValueError, KeyError, TypeError):
            raise StartupError(f"{self.url}: not an OpenAI endpoint: /v1/models returned no list of models") from None

    def ask(self, model: str, messages: list[dict[str, str]], answer: Answer) -> Generator[str]:
        """Yield pieces of text and fill ``answer``. Closing the iterator also ends the request in the engine."""
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        body = {"model": model, "messages": messages, **streamed, **self._limits}
        began = time.monotonic()
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
                if not response.is_success:
                    response.read()
                    raise AnswerFailed(_message(response))
                for line in response.iter_lines():
                    if piece := self._read(line, answer, began):
                        yield piece
        except httpx.TransportError as error:
            raise AnswerFailed(f"{self.url}: {error or type(error).__name__}") from None
        answer.total_s = time.monotonic() - began

    @staticmethod
    def _read(line: str, answer: Answer, began: float) -> str:
        """Read one line of the event stream into ``answer`` and return the text in it."""
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or data == "[DONE]":
            return ""
        chunk = json.loads(data)
        if "error" in chunk:
            raise AnswerFailed(str(chunk["error"].get("message")))
        answer.usage = chunk.get("usage") or answer.usage
        text = ""
        for choice in chunk.get("choices") or ():
            answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
            text += (choice.get("delta") or {}).get("content") or ""
        if text and answer.first_s is None:
            answer.first_s = time.monotonic() - began
        answer.text += text
        return text


@click.command(name="chat", help="Talk to a running endpoint. Ctrl-C stops an answer, Ctrl-D ends the command.")
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="Address of the endpoint.")
@click.option("--model", help="Name of the model. [default: the first model that the endpoint lists]")
@click.option("--system", help="System message of the conversation.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Maximum tokens of an answer.")
@click.option("--api-key-file", type=click.Path(path_type=Path), help="File of API keys. The first key is sent.")
def command(url: str, model: str | None, system: str | None, max_tokens: int | None, api_key_file: Path | None) -> None:
    endpoint = Endpoint(url, _read_key(api_key_file) if api_key_file else None, max_tokens)
    names = endpoint.models()
    if model is None:
        if not names:
            raise StartupError(f"{endpoint.url}: the endpoint lists no model")
        model = names[0]
    click.secho(f"{model} at {endpoint.url}. Ctrl-C stops an answer, Ctrl-D ends the command.", dim=True)
    messages = [{"role": "system", "content": system}] if system else []
    while (question := _read_line()) is not None:
        if question.strip():
            messages = _turn(endpoint, model, [*messages, {"role": "user", "content": question}])


def _turn(endpoint: Endpoint, model: str, messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """Print one answer and return the conversation after it, without the question if no answer came."""
    answer = Answer()
    try:
        with closing(endpoint.ask(model, messages, answer)) as pieces:
            for piece in pieces:
                click.echo(piece, nl=False)
    except KeyboardInterrupt:
        click.echo(" …", nl=False)
    except AnswerFailed as error:
        click.secho(f"\nError: {error.message}", fg="red", err=True)
        return messages[:-1]
    click.echo()
    click.secho(answer.statistics(), dim=True)
    return [*messages, {"role": "assistant", "content": answer.text}] if answer.text else messages[:-1]


def _read_line() -> str | None:
    """Return one line, or None at Ctrl-D. Ctrl-C starts a new line."""
    import readline  # noqa: F401 (gives input() history and editing)

    while True:
        try:
            return input("> ")
        except EOFError:
            click.echo()
            return None
        except KeyboardInterrupt:
            click.echo()


def _read_key(path: Path) -> str:
    """Return the first key of a file of API keys: one a line, ``NAME KEY``, or the key alone."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise ConfigurationError(f"--api-key-file: {path}: {error.strerror}") from None
    keys = [line.split()[-1] for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise ConfigurationError(f"--api-key-file: {path}: got no key, allowed: a line NAME KEY for each key")
    return keys[0]


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{response.status_code} {response.text[:200]}"
