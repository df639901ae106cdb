"""Errors and disconnected clients, at every stage of a request."""

import asyncio
import json

import openai
import pytest

from octavo_api.errors import DeadlineExceeded, Draining, EngineFailure, NoReplica, QueueFull, ReplicaLost
from octavo_api.settings import RouterSettings
from octavo_testing.waiting import eventually_async

CHAT = "/v1/chat/completions"
PATIENCE_S = 20.0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (QueueFull("full", retry_after_s=2.5), 429, "3"),
        (NoReplica("nobody", retry_after_s=0.2), 503, "1"),
        (Draining("leaving"), 503, None),
        (DeadlineExceeded("late"), 504, None),
    ],
)
async def test_a_request_rejected_at_admission_has_its_status(
    http, user, pool, write, stream, error, status, retry_after
):
    pool.answer = lambda request: write.Script(refuse=error)
    answer = await http.post(CHAT, json={"model": "bytes", "messages": user, "stream": stream})
    assert answer.status_code == status
    assert answer.headers.get("retry-after") == retry_after
    assert answer.json() == error.openai()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_rejected_by_the_engine_has_its_status(http, user, pool, write, stream):
    pool.answer = lambda request: write.Script([QueueFull("engine full", retry_after_s=1)])
    answer = await http.post(CHAT, json={"model": "bytes", "messages": user, "stream": stream})
    assert answer.status_code == 429
    assert pool.last.closed.is_set()


async def test_a_replica_lost_during_a_stream_is_an_error_in_it(http, user, pool, write):
    """Send one error event, then the end. No choice has a finish reason."""
    pool.answer = lambda request: write.Script([[write.output("par")], ReplicaLost("gone")])
    answer = await http.post(CHAT, json={"model": "bytes", "messages": user, "stream": True})
    assert answer.status_code == 200
    first, error, done, rest = answer.text.split("\n\n")
    assert json.loads(first[6:])["choices"][0]["delta"]["content"] == "par"
    assert json.loads(error[6:]) == ReplicaLost("gone").openai()
    assert (done, rest) == ("data: [DONE]", "")
    assert pool.last.closed.is_set()


async def test_openais_client_raises_what_broke_a_stream(client, user, pool, write):
    pool.answer = lambda request: write.Script([[write.output("par")], ReplicaLost("gone")])
    stream = await client.chat.completions.create(model="bytes", messages=user, stream=True)
    with pytest.raises(openai.APIError, match="gone"):
        async for _ in stream:
            pass


async def test_a_replica_lost_during_a_buffered_answer_is_an_error(http, user, pool, write):
    pool.answer = lambda request: write.Script([[write.output("par")], ReplicaLost("gone")])
    answer = await http.post(CHAT, json={"model": "bytes", "messages": user})
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "replica_lost"


async def test_a_restarted_answer_has_nothing_of_the_first_attempt(http, user, pool, write):
    """Void the deltas of a choice that a stop string had ended, too."""
    first = [write.output("one.", choice=0), write.output("tw", choice=1)]
    second = [write.output("1.", choice=0), write.output("2", choice=1, finish="length")]
    pool.answer = lambda request: write.Script([first, "again", second])
    answer = (await http.post(CHAT, json={"model": "bytes", "messages": user, "n": 2, "stop": "."})).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["1", "2"]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "length"]
    assert answer["usage"]["completion_tokens"] == 3
    assert pool.requests[0].buffered


async def test_a_stream_is_not_restarted(http, user, pool, write):
    await http.post(CHAT, json={"model": "bytes", "messages": user, "stream": True})
    assert not pool.requests[0].buffered


async def test_a_failure_of_the_engine_fails_the_request(http, user, pool, write):
    pool.answer = lambda request: write.Script([EngineFailure("bad row")])
    answer = await http.post(CHAT, json={"model": "bytes", "messages": user})
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "bad row"


async def test_a_stream_that_ends_without_a_finish_is_an_error(http, user, pool, write):
    pool.answer = lambda request: write.Script([[write.output("par")]])
    answer = await http.post(CHAT, json={"model": "bytes", "messages": user})
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "engine_failure"


async def test_a_bug_is_a_server_error_and_the_next_request_is_served(http, user, pool, write, caplog):
    answer, pool.answer = pool.answer, lambda request: write.Script([RuntimeError("a bug")])
    broken = await http.post(CHAT, json={"model": "bytes", "messages": user}, headers={"x-request-id": "one"})
    assert broken.status_code == 500
    assert "bug" not in broken.text
    assert "a bug" in caplog.text
    assert "request one" in caplog.text
    pool.answer = lambda request: write.Script([[write.output("par")], RuntimeError("a bug")])
    body = {"model": "bytes", "messages": user, "stream": True}
    broken = await http.post(CHAT, json=body, headers={"x-request-id": "two"})
    assert json.loads(broken.text.split("\n\n")[1][6:])["error"]["type"] == "server_error"
    assert "stream chatcmpl-two" in caplog.text
    pool.answer = answer
    assert (await http.post(CHAT, json={"model": "bytes", "messages": user})).status_code == 200


async def test_a_silent_engine_ends_with_504(start_gateway, pool, write, user, monkeypatch):
    monkeypatch.setattr("octavo_router.answers.gateway.GRACE_S", -0.8)
    pool.answer = lambda request: write.Script([asyncio.Event()])
    server = await start_gateway(pool, settings=RouterSettings(request_timeout_seconds=1))
    import httpx

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.http_port}", verify=False) as http:
        answer = await http.post(CHAT, json={"model": "bytes", "messages": user}, timeout=PATIENCE_S)
    assert answer.status_code == 504
    assert pool.last.closed.is_set()


class Connection:
    """Client that can disconnect."""

    @classmethod
    async def open(cls, server, body: dict | None, *, length: int | None = None):
        self = cls()
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", server.http_port)
        content = json.dumps(body).encode() if body is not None else b"{"
        size = length or len(content)
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n"
        self.writer.write(head.encode() + content)
        await self.writer.drain()
        return self

    def hang_up(self):
        self.writer.transport.abort()


def asked(user, **fields):
    return {"model": "bytes", "messages": user} | fields


async def test_a_client_that_disconnects_while_it_sends_is_counted(server, pool, http):
    connection = await Connection.open(server, None, length=1000)
    connection.hang_up()
    await eventually_async("the closed request is counted", lambda: _count(server, "499") == 1)
    assert not pool.streams


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_disconnects_before_admission_is_released(server, user, pool, stream):
    cancelled = asyncio.Event()

    async def opening(request):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    pool.opening = opening
    connection = await Connection.open(server, asked(user, stream=stream))
    await eventually_async("the request is active", lambda: server.active_requests == 1)
    connection.hang_up()
    await asyncio.wait_for(cancelled.wait(), PATIENCE_S)
    await eventually_async("no request is active", lambda: server.active_requests == 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("shown", [[], ["some text"]])
async def test_a_client_that_disconnects_later_aborts_the_engine(server, user, pool, write, stream, shown):
    pool.answer = lambda request: write.Script([*[[write.output(text)] for text in shown], asyncio.Event()])
    connection = await Connection.open(server, asked(user, stream=stream))
    await eventually_async("the request is in the pool", lambda: pool.streams)
    if shown and stream:
        assert (await connection.reader.readline()).startswith(b"HTTP/1.1 200")
    connection.hang_up()
    await asyncio.wait_for(pool.last.closed.wait(), PATIENCE_S)
    await eventually_async("the closed request is counted", lambda: _count(server, "499") == 1)
    assert server.active_requests == 0


async def test_a_client_that_disconnects_aborts_all_prompts(server, pool, write):
    pool.answer = lambda request: write.Script([asyncio.Event()])
    _, writer = await asyncio.open_connection("127.0.0.1", server.http_port)
    body = json.dumps({"model": "bytes", "prompt": ["a", "b", "c"]})
    writer.write(f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
    await eventually_async("three requests are in the pool", lambda: len(pool.streams) == 3)
    writer.transport.abort()
    await eventually_async("all streams are closed", lambda: all(stream.closed.is_set() for stream in pool.streams))


async def test_a_client_that_does_not_read_is_cut_after_its_deadline(start_gateway, user, pool, write, monkeypatch):
    monkeypatch.setattr("octavo_router.answers.gateway.GRACE_S", -0.8)
    monkeypatch.setattr("octavo_router.http.generate.GRACE_S", 0.2)
    pool.answer = lambda request: write.Script([[write.output("x" * 200_000)] for _ in range(100)])
    server = await start_gateway(pool, settings=RouterSettings(request_timeout_seconds=1))
    connection = await Connection.open(server, asked(user, stream=True))
    await eventually_async("the request is in the pool", lambda: pool.streams)
    await asyncio.wait_for(pool.last.closed.wait(), PATIENCE_S)
    connection.hang_up()


async def test_one_failing_prompt_fails_the_request_and_aborts_the_others(http, pool, write):
    def answer(request):
        failing = request.token_ids == [ord("b")]
        return write.Script([ReplicaLost("gone") if failing else asyncio.Event()])

    pool.answer = answer
    result = await http.post("/v1/completions", json={"model": "bytes", "prompt": ["a", "b", "c"]})
    assert result.status_code == 502
    assert all(stream.closed.is_set() for stream in pool.streams)


def _count(server, code):
    value = server.metrics.registry.get_sample_value("octavo_http_requests_total", {"path": CHAT, "code": code})
    return value or 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_a_body_that_never_ends_is_a_timeout(start_gateway, pool, monkeypatch, path):
    monkeypatch.setattr("octavo_router.answers.gateway.GRACE_S", -0.9)
    server = await start_gateway(pool, settings=RouterSettings(request_timeout_seconds=1))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.http_port)
    writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{{".encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 504")
    writer.close()
