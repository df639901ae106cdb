"""A light streaming client for benchmarks: OpenAI completions over HTTP, with the time of every token."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass(slots=True)
class Answer:
    """Times are seconds from ``sent``. ``status`` is 0 where the connection failed."""

    status: int = 0
    sent: float = 0.0
    times: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    error: dict[str, Any] | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    route: dict[str, Any] = field(default_factory=dict)
    ended: float = 0.0

    @property
    def ttft(self) -> float:
        return self.times[0]


async def complete(session: aiohttp.ClientSession, url: str, prompt: str | Sequence[int], **fields: Any) -> Answer:
    """Streams one completion; never raises for what the server or the connection does."""
    answer = Answer(sent=time.monotonic())
    body = {
        "model": "smollm2",
        "prompt": prompt,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        **fields,
    }
    try:
        async with session.post(
            f"{url}/v1/completions", json=body, headers={"x-octavo-explain": "1"}, timeout=aiohttp.ClientTimeout(None)
        ) as response:
            answer.status = response.status
            if response.status != 200:
                answer.error = (await response.json()).get("error")
            else:
                async for line in response.content:
                    if line.startswith(b"data: ") and line != b"data: [DONE]\n":
                        _read(answer, json.loads(line[6:]))
    except (TimeoutError, aiohttp.ClientError, ConnectionError) as error:
        answer.error = {"type": type(error).__name__, "message": str(error)}
    answer.ended = time.monotonic() - answer.sent
    return answer


def _read(answer: Answer, event: dict[str, Any]) -> None:
    if "error" in event:
        answer.error = event["error"]
    if event.get("usage"):
        answer.usage = event["usage"]
    if event.get("octavo"):
        answer.route = event["octavo"]
    for choice in event.get("choices", ()):
        if choice.get("text"):
            answer.times.append(time.monotonic() - answer.sent)
            answer.text += choice["text"]
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
