import httpx
import pytest_asyncio

from octavo_router.front.keys import ApiKeys

ASK = {"model": "bytes", "prompt": "x"}


@pytest_asyncio.fixture
async def guarded(start_gateway, pool, key_file):
    server = await start_gateway(pool, keys=ApiKeys.from_file(key_file))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.http_port}", verify=False) as client:
        yield client


async def test_without_a_valid_key_all_but_four_paths_answer_401(guarded, pool):
    for headers in ({}, {"authorization": "Bearer wrong-key"}, {"authorization": "Basic key-of-acme-1"}):
        for method, path in (
            ("POST", "/v1/completions"),
            ("POST", "/v1/chat/completions"),
            ("GET", "/v1/models"),
            ("POST", "/tokenize"),
            ("GET", "/nowhere"),
        ):
            answer = await guarded.request(method, path, headers=headers)
            assert answer.status_code == 401
            error = answer.json()["error"]
            assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, "invalid_api_key")
    assert error["message"].startswith("You didn't provide an API key")
    assert not pool.streams
    for path in ("/health", "/ready", "/metrics", "/version"):
        assert (await guarded.get(path)).status_code == 200


async def test_the_key_chooses_the_tenant_and_with_the_salt_the_cache(guarded, pool):
    salts = []
    for key, salt in (("key-of-acme-1", None), ("key-of-acme-2", "a"), ("key-of-zeta-1", "a"), ("key-of-zeta-1", "b")):
        body = ASK | {"cache_salt": salt}
        answer = await guarded.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == 200
        salts.append((pool.requests[-1].tenant, pool.requests[-1].cache_salt))
    assert salts == [("acme", "acme/"), ("acme", "acme/a"), ("zeta", "zeta/a"), ("zeta", "zeta/b")]


async def test_without_keys_the_salt_is_used_alone(http, pool):
    await http.post("/v1/completions", json=ASK)
    await http.post("/v1/completions", json=ASK | {"cache_salt": "acme/"})
    assert [request.cache_salt for request in pool.requests] == ["", "/acme/"]
