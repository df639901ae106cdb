"""Answers byte for byte, except ids and times."""

import json
import re

import pytest


def normal(text: str) -> str:
    return re.sub(r'"created":\d+', '"created":1', re.sub(r"(chatcmpl|cmpl)-[0-9a-f]{32}", r"\1-ID", text))


async def post(http, path, **body):
    response = await http.post(path, json={"model": "bytes", **body})
    assert response.status_code == 200, response.text
    return normal(response.text)


CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USAGE = (
    '"usage":{"prompt_tokens":18,"completion_tokens":3,"total_tokens":21,"prompt_tokens_details":{"cached_tokens":2}}'
)
OPEN = '"finish_reason":null}]}'
LENGTH = '"finish_reason":"length","stop_reason":null}]}'
STOP = '"finish_reason":"stop","stop_reason":null}]}'
HEAD = '{"id":"chatcmpl-ID","object":"chat.completion.chunk","created":1,"model":"bytes","choices":['


async def test_chat_in_one_piece(http, user, pool, write):
    pool.answer = lambda request: write.whole("a", "b")
    assert await post(http, CHAT, messages=user) == (
        '{"id":"chatcmpl-ID","object":"chat.completion","created":1,"model":"bytes","choices":[{"index":0,"message":'
        '{"role":"assistant","content":"ab","refusal":null},"logprobs":null,"finish_reason":"stop","stop_reason":null}],'
        + USAGE
        + "}"
    )


async def test_chat_as_events(http, user, pool, write):
    pool.answer = lambda request: write.whole("é\n", '"', finish="length")
    events = await post(http, CHAT, messages=user, stream=True)
    assert events.split("\n\n") == [
        f'data: {HEAD}{{"index":0,"delta":{{"role":"assistant","content":"é\\n"}},"logprobs":null,{OPEN}',
        f'data: {HEAD}{{"index":0,"delta":{{"content":"\\""}},"logprobs":null,"finish_reason":null}}]}}',
        f'data: {HEAD}{{"index":0,"delta":{{"content":"!"}},"logprobs":null,{LENGTH}',
        "data: [DONE]",
        "",
    ]


async def test_the_last_delta_is_empty_if_a_special_token_ends_the_text(http, user, pool, write):
    pool.answer = lambda request: write.whole("a")
    events = await post(http, CHAT, messages=user, stream=True)
    assert events.split("\n\n")[1] == (
        f'data: {HEAD}{{"index":0,"delta":{{}},"logprobs":null,"finish_reason":"stop","stop_reason":null}}]}}'
    )


async def test_usage_comes_last_and_is_null_before(http, user, pool, write):
    pool.answer = lambda request: write.whole("a", "b")
    events = await post(http, CHAT, messages=user, stream=True, stream_options={"include_usage": True})
    *others, last, done, _ = events.split("\n\n")
    assert len(others) == 3
    assert all(event.endswith('],"usage":null}') for event in others)
    assert last == f"data: {HEAD}],{USAGE}}}"
    assert done == "data: [DONE]"


async def test_without_tokens_there_is_still_one_role_and_one_finish(http, user, pool, write):
    pool.answer = lambda request: write.whole()
    events = await post(http, CHAT, messages=user, stream=True)
    assert events.split("\n\n")[:2] == [
        f'data: {HEAD}{{"index":0,"delta":{{"role":"assistant"}},"logprobs":null,{STOP}',
        "data: [DONE]",
    ]


async def test_chat_logprobs(http, user, pool, write):
    pool.answer = lambda request: write.whole("x", logprobs=request.sampling.logprobs, finish="length")
    body = json.loads(await post(http, CHAT, messages=user, logprobs=True, top_logprobs=1))
    assert pool.requests[0].sampling.logprobs == 1
    top = [{"token": "a", "logprob": -0.25, "bytes": [97]}]
    assert body["choices"][0]["logprobs"] == {
        "content": [
            {"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": top},
            {"token": "!", "logprob": -0.5, "bytes": [33], "top_logprobs": top},
        ],
        "refusal": None,
    }


async def test_streamed_logprobs_of_half_a_character_wait_for_the_other_half(http, user, pool, write):
    first, second = "é".encode()[:1], "é".encode()[1:]
    pool.answer = lambda request: write.whole(first, second, logprobs=0)
    events = (await post(http, CHAT, messages=user, stream=True, logprobs=True)).split("\n\n")
    choice = json.loads(events[0].removeprefix("data: "))["choices"][0]
    assert choice["delta"]["content"] == "é"
    assert [entry["bytes"] for entry in choice["logprobs"]["content"]] == [[0xC3], [0xA9]]


async def test_completion_in_one_piece(http, pool, write):
    pool.answer = lambda request: write.whole("a", "b")
    assert await post(http, COMPLETIONS, prompt="x" * 18) == (
        '{"id":"cmpl-ID","object":"text_completion","created":1,"model":"bytes","choices":[{"index":0,"text":"ab",'
        '"logprobs":null,"finish_reason":"stop","stop_reason":null}],' + USAGE + "}"
    )
    assert pool.requests[0].sampling.max_tokens == 16


async def test_completion_as_events(http, pool, write):
    pool.answer = lambda request: write.whole("a", "b")
    head = '{"id":"cmpl-ID","object":"text_completion","created":1,"model":"bytes","choices":['
    assert (await post(http, COMPLETIONS, prompt="x", stream=True)).split("\n\n") == [
        f'data: {head}{{"index":0,"text":"a","logprobs":null,"finish_reason":null}}]}}',
        f'data: {head}{{"index":0,"text":"b","logprobs":null,"finish_reason":null}}]}}',
        f'data: {head}{{"index":0,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":null}}]}}',
        "data: [DONE]",
        "",
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_with_logprobs_covers_the_prompt(http, pool, write, stream):
    """Format that lm-eval reads: an entry for each prompt token (none for the first), then the output's."""

    def answer(request):
        scored = write.output(logprobs=1, prompt=request.token_ids[1:])
        return write.Script([[scored], [write.output("y", logprobs=1, finish="length")]])

    pool.answer = answer
    text = await post(http, COMPLETIONS, prompt=[104, 105], echo=True, logprobs=1, max_tokens=1, stream=stream)
    assert pool.requests[0].sampling.prompt_logprobs == 1
    body = json.loads(text.split("\n\n")[0].removeprefix("data: "))
    assert body["choices"][0]["text"] == "hiy"
    assert body["choices"][0]["logprobs"] == {
        "text_offset": [0, 1, 2],
        "token_logprobs": [None, -0.5, -0.5],
        "tokens": ["h", "i", "y"],
        "top_logprobs": [None, {"a": -0.25, "i": -0.5}, {"a": -0.25, "y": -0.5}],
    }


async def test_echo_of_no_tokens_shows_the_prompt_alone(http, pool, write):
    def answer(request):
        scored = write.output(logprobs=0, prompt=request.token_ids[1:])
        return write.Script([[scored], [write.output("y", logprobs=0, finish="length")]])

    pool.answer = answer
    body = json.loads(await post(http, COMPLETIONS, prompt="hi", echo=True, logprobs=0, max_tokens=0))
    assert pool.requests[0].sampling.max_tokens == 1
    assert body["choices"][0]["text"] == "hi"
    assert body["choices"][0]["logprobs"]["tokens"] == ["h", "i"]
    assert body["usage"]["completion_tokens"] == 0


async def test_streamed_offsets_continue(http, pool, write):
    pool.answer = lambda request: write.whole("ab", "c", logprobs=0, finish="length")
    events = (await post(http, COMPLETIONS, prompt="x", logprobs=0, stream=True)).split("\n\n")
    offsets = [json.loads(event[6:])["choices"][0]["logprobs"]["text_offset"] for event in events[:3]]
    assert offsets == [[0, 1], [2], [3]]


async def test_minus_infinity_is_a_number(http, pool, write):
    output = write.output("a", logprobs=0, finish="length")
    output.logprobs[0].chosen.logprob = float("-inf")
    pool.answer = lambda request: write.Script([[output]])
    body = json.loads(await post(http, COMPLETIONS, prompt="x", logprobs=0))
    assert body["choices"][0]["logprobs"]["token_logprobs"] == [-9999.0]


async def test_token_ids_on_request(http, user, pool, write):
    pool.answer = lambda request: write.whole("a", finish="length")
    body = json.loads(await post(http, CHAT, messages=user, return_token_ids=True))
    assert bytes(body["prompt_token_ids"]) == b"<|user|>Hi\n<|bot|>"
    assert bytes(body["choices"][0]["token_ids"]) == b"a!"
    events = (await post(http, CHAT, messages=user, return_token_ids=True, stream=True)).split("\n\n")
    choices = [json.loads(event[6:])["choices"][0] for event in events[:2]]
    assert bytes(choices[0]["prompt_token_ids"]) == b"<|user|>Hi\n<|bot|>"
    assert [choice["token_ids"] for choice in choices] == [[97], [33]]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_its_choice_alone(http, user, pool, write, stream):
    go = [[write.output(letter, choice=choice) for choice in (0, 1)] for letter in "one END"]
    rest = [[write.output(" more", choice=0), write.output(" more", choice=1, finish="length")]]
    go[3][1] = write.output("_", choice=1)
    pool.answer = lambda request: write.Script([*go, *rest])
    text = await post(http, CHAT, messages=user, n=2, stop=[" EN", "zzz"], stream=stream)
    if stream:
        choices = [c for event in text.split("\n\n")[:-2] for c in json.loads(event[6:])["choices"]]
        texts = ["".join(c["delta"].get("content", "") for c in choices if c["index"] == index) for index in (0, 1)]
        ends = {c["index"]: (c["finish_reason"], c["stop_reason"]) for c in choices if c["finish_reason"]}
    else:
        choices = json.loads(text)["choices"]
        texts = [c["message"]["content"] for c in choices]
        ends = {c["index"]: (c["finish_reason"], c["stop_reason"]) for c in choices}
    assert texts == ["one", "one_END more"]
    assert ends == {0: ("stop", " EN"), 1: ("length", None)}
    assert pool.last.aborted == [0]


async def test_stop_token_id_is_the_reason_and_not_in_the_text(http, user, pool, write):
    pool.answer = lambda request: write.Script([[write.output("ab", finish="stop", stop_token_id=98)]])
    choice = json.loads(await post(http, CHAT, messages=user, stop_token_ids=[98]))["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == ("a", "stop", 98)


@pytest.mark.parametrize(("include", "shown"), [(False, "a"), (True, "a.")])
async def test_include_stop_str_in_output(http, pool, write, include, shown):
    pool.answer = lambda request: write.whole("a.b")
    body = json.loads(await post(http, COMPLETIONS, prompt="x", stop=".", include_stop_str_in_output=include))
    assert body["choices"][0]["text"] == shown
    assert body["usage"]["completion_tokens"] == 2


async def test_the_route_is_explained_in_headers_and_body(http, user):
    body = {"model": "bytes", "messages": user}
    plain = await http.post(CHAT, json=body)
    assert "octavo" not in plain.json()
    assert "x-octavo-replica" not in plain.headers
    for stream in (False, True):
        answer = await http.post(CHAT, json=body | {"stream": stream}, headers={"x-octavo-explain": "1"})
        assert answer.headers["x-octavo-replica"] == "replica-0"
        assert answer.headers["x-octavo-route-reason"] == "hit"
        assert answer.headers["x-octavo-predicted-cached-tokens"] == "3"
        last = answer.text.split("\n\n")[-3].removeprefix("data: ") if stream else answer.text
        assert json.loads(last)["octavo"] == {
            "replica": "replica-0",
            "policy": "prefix",
            "reason": "hit",
            "predicted_cached_tokens": 3,
            "cached_tokens": 2,
            "cost_s": 0.25,
        }


async def test_tokenize_and_detokenize(http, user):
    answer = await http.post("/tokenize", json={"model": "bytes", "prompt": "hé", "return_token_strs": True})
    assert answer.json() == {
        "count": 3,
        "max_model_len": 512,
        "tokens": [104, 195, 169],
        "token_strs": ["h", "\ufffd", "\ufffd"],
    }
    chat = (await http.post("/tokenize", json={"messages": user})).json()
    assert bytes(chat["tokens"]) == b"<|user|>Hi\n<|bot|>"
    assert (await http.post("/detokenize", json={"tokens": [104, 195, 169]})).json() == {"prompt": "hé"}


async def test_request_id_is_kept(http, user):
    answer = await http.post(CHAT, json={"model": "bytes", "messages": user}, headers={"x-request-id": "abc.1"})
    assert answer.headers["x-request-id"] == "abc.1"
    assert answer.json()["id"] == "chatcmpl-abc.1"
    assert len((await http.get("/health")).headers["x-request-id"]) == 32


async def test_plain_endpoints(http, pool):
    assert (await http.get("/health")).status_code == 200
    assert (await http.head("/health")).status_code == 200
    assert (await http.get("/ready")).status_code == 200
    assert (await http.get("/version")).json()["version"]
    model = (await http.get("/v1/models")).json()["data"][0]
    assert (model["id"], model["object"], model["max_model_len"]) == ("bytes", "model", 512)
    pool.routable = False
    assert (await http.get("/health")).status_code == 200
    not_ready = await http.get("/ready")
    assert not_ready.status_code == 503
    assert not_ready.json()["error"]["code"] == "no_replica"
