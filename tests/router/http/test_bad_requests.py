"""Invalid requests of any kind: the answer names the problem, and the next request is served."""

import asyncio
import json
import re
from contextlib import suppress

import pytest

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USER = [{"role": "user", "content": "Hi"}]


def chat(**fields):
    return CHAT, json.dumps({"model": "bytes", "messages": USER} | fields)


def plain(**fields):
    return COMPLETIONS, json.dumps({"model": "bytes", "prompt": "x"} | fields)


def message(**fields):
    return chat(messages=[{"role": "user", "content": "Hi"} | fields])


BAD = [
    # request, status, param, words of the message: the value, the allowed values
    ((CHAT, "{"), 400, None, ["invalid JSON", "one JSON object"]),
    ((CHAT, ""), 400, None, ["invalid JSON"]),
    ((CHAT, "[1]"), 400, None, ["array", "one JSON object"]),
    ((CHAT, '"x"'), 400, None, ["string", "one JSON object"]),
    ((CHAT, "null"), 400, None, ["null", "one JSON object"]),
    ((CHAT, b'{"model": "\xff"}'), 400, None, ["UTF-8", "byte 11"]),
    ((CHAT, "[" * 100_000), 400, None, ["nested too deeply"]),
    ((CHAT, '{"a":' * 50_000), 400, None, ["nested too deeply"]),
    ((CHAT, '{"model": "bytes", "temperature": NaN}'), 400, None, ["NaN"]),
    ((CHAT, '{"model": "bytes", "temperature": -Infinity}'), 400, None, ["-Infinity"]),
    ((COMPLETIONS, '{"model": "bytes", "prompt": "x", "temperature": 1e999}'), 400, "temperature", ["inf", "0 to 2"]),
    ((COMPLETIONS, '{"model": "bytes", "prompt": "x", "seed": ' + "9" * 5000 + "}"), 400, None, ["invalid JSON"]),
    ((COMPLETIONS, '{"model": "bytes", "prompt": "\\ud800"}'), 400, None, ["surrogate"]),
    ((CHAT, "{}"), 400, "model", ["required"]),
    (chat(model=None), 400, "model", ["required"]),
    (chat(model=""), 404, "model", ["''", "'bytes'"]),
    (chat(model="gpt-4"), 404, "model", ["'gpt-4'", "'bytes'"]),
    (chat(model=7), 400, "model", ["7", "name of a model"]),
    (chat(messages=None), 400, "messages", ["required", "at least one message"]),
    (chat(messages=[]), 400, "messages", ["[]", "at least one message"]),
    (chat(messages="Hi"), 400, "messages", ["'Hi'", "list"]),
    (chat(messages=[None]), 400, "messages[0]", ["None"]),
    (chat(messages=["Hi"]), 400, "messages[0]", ["'Hi'"]),
    (message(role="robot"), 400, "messages[0].role", ["'robot'", "'user'"]),
    (message(role="tool"), 400, "messages[0].role", ["'tool'", "'assistant'"]),
    (message(role=None), 400, "messages[0].role", ["required"]),
    (message(content=None), 400, "messages[0].content", ["required"]),
    (message(content=5), 400, "messages[0].content", ["5", "a string or a list of text parts"]),
    (
        message(content=[{"type": "image_url", "image_url": {"url": "http://x"}}]),
        400,
        "messages[0].content[0].type",
        ["'image_url'", "'text'"],
    ),
    (message(content=[{"type": "text"}]), 400, "messages[0].content[0].text", ["required"]),
    (message(colour="red"), 400, "messages[0].colour", ["unknown"]),
    (message(role="assistant", tool_calls=[{"id": "1"}]), 400, "messages[0].tool_calls", ["no tools"]),
    (chat(temperature=2.1), 400, "temperature", ["2.1", "0 to 2"]),
    (chat(temperature="hot"), 400, "temperature", ["'hot'", "0 to 2"]),
    (chat(temperature=True), 400, "temperature", ["True", "0 to 2"]),
    (chat(top_p=0), 400, "top_p", ["0", "above 0, up to 1"]),
    (chat(top_k=-2), 400, "top_k", ["-2"]),
    (chat(top_k=1.5), 400, "top_k", ["1.5", "an integer"]),
    (chat(min_p=1.5), 400, "min_p", ["1.5", "0 to 1"]),
    (chat(n=0), 400, "n", ["0", "1 to 64"]),
    (chat(n=65), 400, "n", ["65", "1 to 64"]),
    (chat(n="2"), 400, "n", ["'2'", "1 to 64"]),
    (chat(seed=-1), 400, "seed", ["-1"]),
    (chat(seed=2**64), 400, "seed", [str(2**64)]),
    (chat(presence_penalty=3), 400, "presence_penalty", ["3", "-2 to 2"]),
    (chat(frequency_penalty=-3), 400, "frequency_penalty", ["-3", "-2 to 2"]),
    (chat(repetition_penalty=0), 400, "repetition_penalty", ["0", "to 10"]),
    (chat(max_tokens=0), 400, "max_tokens", ["0", "1 to"]),
    (chat(max_tokens=[5]), 400, "max_tokens", ["[5]", "an integer"]),
    (chat(max_completion_tokens=0), 400, "max_completion_tokens", ["0", "1 to"]),
    (chat(min_tokens=9, max_tokens=8), 400, "min_tokens", ["9", "8"]),
    (chat(stop=["x"] * 10_000), 400, "stop", ["10000", "at most 16"]),
    (chat(stop=""), 400, "stop", ["''", "1 to"]),
    (chat(stop="x" * 2000), 400, "stop", ["1 to"]),
    (chat(stop=[1]), 400, "stop", ["[1]", "list of at most 16 strings"]),
    (chat(stop_token_ids=[260]), 400, "stop_token_ids", ["260", "0 to 259"]),
    (chat(stop_token_ids="1"), 400, "stop_token_ids", ["'1'", "list of token ids"]),
    (chat(stop_token_ids=list(range(129))), 400, "stop_token_ids", ["129", "128"]),
    (chat(logit_bias={"x": 1}), 400, "logit_bias", ["'x'", "token ids"]),
    (chat(logit_bias={"5": 101}), 400, "logit_bias[5]", ["101", "-100 to 100"]),
    (chat(logit_bias={"260": 1}), 400, "logit_bias", ["260", "0 to 259"]),
    (chat(logit_bias=[5]), 400, "logit_bias", ["[5]", "object"]),
    (chat(logprobs=5), 400, "logprobs", ["5", "true or false"]),
    (chat(logprobs=True, top_logprobs=21), 400, "top_logprobs", ["21", "0 to 20"]),
    (chat(top_logprobs=3), 400, "top_logprobs", ["3", "logprobs: true"]),
    (chat(stream="yes"), 400, "stream", ["'yes'", "true or false"]),
    (chat(stream_options={"include_usage": True}), 400, "stream_options", ["stream: true"]),
    (chat(stream=True, stream_options=[]), 400, "stream_options", ["[]", "include_usage"]),
    (chat(stream=True, stream_options={"a": 1}), 400, "stream_options.a", ["unknown"]),
    (chat(response_format={"type": "json_object"}), 400, "response_format.type", ["'json_object'", "'text'"]),
    (chat(tools=[{"type": "function"}]), 400, "tools", ["[]", "no tools"]),
    (chat(tool_choice="required"), 400, "tool_choice", ["'required'", "'none'"]),
    (chat(modalities=["audio"]), 400, "modalities[0]", ["'audio'", "['text']"]),
    (chat(store=True), 400, "store", ["True", "false"]),
    (chat(service_tier="flex"), 400, "service_tier", ["'flex'", "'auto'"]),
    (chat(metadata={"a": 1}), 400, "metadata", ["object of strings"]),
    (chat(priority=2**31), 400, "priority", ["an integer of 32 bits"]),
    (chat(cache_salt="x" * 300), 400, "cache_salt", ["256"]),
    (chat(temprature=1), 400, "temprature", ["did you mean temperature?"]),
    (chat(reasoning_effort="high"), 400, "reasoning_effort", ["unknown or unsupported"]),
    (chat(functions=[]), 400, "functions", ["unknown or unsupported"]),
    (chat(messages=[{"role": "user", "content": "x" * 600}]), 400, "messages", ["616", "512"]),
    (plain(prompt=None), 400, "prompt", ["required"]),
    (plain(prompt=""), 400, "prompt", ["''", "at least one token"]),
    (plain(prompt=[]), 400, "prompt", ["0 prompts", "1 to 1024"]),
    (plain(prompt=[[]]), 400, "prompt", ["at least one token"]),
    (plain(prompt=[1, "a"]), 400, "prompt", ["[1, 'a']", "a list of token ids"]),
    (plain(prompt=[260]), 400, "prompt", ["260", "0 to 259"]),
    (plain(prompt=[-1]), 400, "prompt", ["-1", "0 to 259"]),
    (plain(prompt=[1.0]), 400, "prompt", ["[1.0]"]),
    (plain(prompt=["x"] * 1025), 400, "prompt", ["1025", "1 to 1024"]),
    (plain(suffix="y"), 400, "suffix", ["unknown or unsupported"]),
    (plain(best_of=3), 400, "best_of", ["3", "same as n"]),
    (plain(logprobs=True), 400, "logprobs", ["True", "0 to 20"]),
    (plain(logprobs=21), 400, "logprobs", ["21", "0 to 20"]),
    (plain(max_tokens=0), 400, "max_tokens", ["0", "1 to"]),
    (plain(echo=1), 400, "echo", ["1", "true or false"]),
    (("/tokenize", '{"prompt": 5}'), 400, "prompt", ["5", "a string"]),
    (("/tokenize", "{}"), 400, "prompt", ["exactly one of prompt and messages"]),
    (("/tokenize", '{"model": "x", "prompt": "y"}'), 404, "model", ["'x'", "'bytes'"]),
    (("/detokenize", '{"tokens": [300]}'), 400, "tokens", ["300", "0 to 259"]),
    (("/detokenize", '{"tokens": ["a"]}'), 400, "tokens[0]", ["'a'", "list of token ids"]),
]


@pytest.fixture(autouse=True)
def limited(pool, write):
    """Reject prompts that are too long, as the router does."""
    from octavo_api.errors import ContextLengthExceeded

    answer = pool.answer

    def check(request):
        if len(request.token_ids) > 512:
            refusal = ContextLengthExceeded(f"{len(request.token_ids)} tokens; allowed: 512", param="prompt")
            return write.Script(refuse=refusal)
        return answer(request)

    pool.answer = check


async def test_the_error_of_every_bad_request_names_the_problem(http):
    assert len(BAD) >= 60
    for (path, body), status, param, words in BAD:
        answer = await http.post(path, content=body, headers={"content-type": "application/json"})
        shown = f"{path} {body[:200]!r}: {answer.status_code} {answer.text}"
        assert answer.status_code == status, shown
        assert answer.headers["content-type"] == "application/json", shown
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}, shown
        assert error["type"] == "invalid_request_error", shown
        assert error["param"] == param, shown
        assert all(word in error["message"] for word in words), shown
        assert len(error["message"]) < 700, shown
        good = await http.post(COMPLETIONS, content=plain()[1])
        assert good.status_code == 200, f"after {shown}"


async def test_too_long_a_prompt_has_openais_code(http):
    answer = await http.post(COMPLETIONS, content=plain(prompt="x" * 513)[1])
    assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": None, "n": None, "stop": None, "stream": None, "tools": None, "response_format": None},
        {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "parallel_tool_calls": False},
        {"tools": [], "tool_choice": "none", "modalities": ["text"], "logprobs": False, "safety_identifier": "x"},
        {"response_format": {"type": "text"}, "top_k": -1, "max_completion_tokens": 5, "logit_bias": {"5": -100}},
        {"stream": True, "stream_options": {}},
        {"stream": True, "stream_options": {"include_usage": None}},
        {"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}], "name": None}]},
        {"messages": [*USER, {"role": "assistant", "content": "a", "refusal": None, "tool_calls": None}, *USER]},
    ],
)
async def test_null_and_neutral_values_are_accepted(http, fields):
    answer = await http.post(CHAT, content=chat(**fields)[1])
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "text/plain", ""])
async def test_the_content_type_does_not_matter(http, content_type):
    answer = await http.post(COMPLETIONS, content=plain()[1], headers={"content-type": content_type})
    assert answer.status_code == 200


async def test_duplicate_keys_are_tolerated(http):
    body = '{"model": "no", "model": "bytes", "prompt": "x"}'
    assert (await http.post(COMPLETIONS, content=body)).status_code == 200


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
async def test_a_body_above_the_limit_is_rejected(http, path):
    async def in_chunks():
        for _ in range(32):
            yield b"x" * 65536

    for body in (b"x" * 2**21, in_chunks()):
        answer = await http.post(path, content=body)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "request_too_large"
        assert str(256 * 1024) in answer.json()["error"]["message"]
    assert (await http.get("/health")).status_code == 200


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ("content-length: 1000000000000", b"{"),
        ("transfer-encoding: chunked", b"80000\r\n" + b"x" * 0x80000 + b"\r\n"),
    ],
)
async def test_a_body_is_rejected_before_all_of_it_is_read(server, headers, body):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.http_port)
    writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n{headers}\r\n\r\n".encode() + body)
    assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    writer.close()


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("OPTIONS", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/tokenize", 405, "method_not_allowed"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
    ],
)
async def test_wrong_paths_and_methods_have_openais_error(http, method, path, status, code):
    answer = await http.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert status != 405 or answer.headers["allow"]


async def test_a_request_id_that_could_split_a_header_is_rejected(http):
    answer = await http.get("/health", headers={"x-request-id": "a b"})
    assert answer.status_code == 400
    assert "x-request-id" in answer.json()["error"]["message"]


async def test_endless_headers_are_rejected(server):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.http_port)
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nx: ")
    answer = asyncio.create_task(reader.readline())
    with suppress(ConnectionError):
        while not answer.done():
            writer.write(b"a" * 65536)
            await writer.drain()
            await asyncio.sleep(0.001)
    assert (await answer).startswith(b"HTTP/1.1 400")
    writer.close()


async def test_a_long_body_is_no_long_header(server):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.http_port)
    body = plain(user="u" * 200_000)[1].encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    for _ in range(2):
        for part in (head[:20], head[20:], body[:1000], body[1000:]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        headers = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(re.search(rb"content-length: (\d+)", headers)[1]))
    writer.close()


@pytest.mark.parametrize("start", [b"", b"GET /health HTTP/1.1\r\nx: "])
async def test_a_client_that_never_ends_its_headers_is_cut(server, monkeypatch, start):
    monkeypatch.setattr("octavo_router.http.uvicorn_server.HEAD_S", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.http_port)
    writer.write(start)
    assert await reader.read() == b""
    writer.close()
