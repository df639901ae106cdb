"""``helm test``: the script of its pod, run here against an endpoint."""

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from octavo_testing.certificates import self_signed

Document = dict[str, Any]


@pytest.fixture
def pod(render: Callable[..., list[Document]], find: Callable[..., Document]) -> Callable[..., Document]:
    return lambda values=None: find(render(values or {}), "Pod")


def tls(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*self_signed("elsewhere").write(folder, "tls"))
    return context


class Endpoint:
    """Answers as a gateway does; ``tokens`` are its whole text."""

    def __init__(self) -> None:
        self.tokens = ["A", " book"]
        self.key = ""
        self.status = 200
        self.error = False
        self.base = self.secure_base = ""

    async def models(self, request: web.Request) -> web.Response:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": "wrong API key"}}, status=401)
        return web.json_response({"data": [{"id": "smollm2"}]}, status=self.status)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        assert (await request.json())["model"] == "smollm2"
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"choices": [{"delta": {"role": "assistant"}}]}\n\n')
        for token in self.tokens:
            await response.write(b'data: {"choices": [{"delta": {"content": "%s"}}]}\n\n' % token.encode())
        if self.error:
            await response.write(b'data: {"error": {"message": "the replica died"}}\n\n')
        await response.write(b'data: {"choices": []}\n\ndata: [DONE]\n\n')
        return response


@pytest.fixture
async def endpoint(tmp_path: Path) -> AsyncIterator[Endpoint]:
    found, app = Endpoint(), web.Application()
    app.add_routes([web.get("/v1/models", found.models), web.post("/v1/chat/completions", found.chat)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls(tmp_path)).start()
    found.base, found.secure_base = (
        f"{scheme}://127.0.0.1:{address[1]}"
        for scheme, address in zip(("http", "https"), runner.addresses, strict=True)
    )
    yield found
    await runner.cleanup()


async def run(pod: Document, endpoint: Endpoint, **environment: str) -> tuple[int, str]:
    container = pod["spec"]["containers"][0]
    assert container["command"] == ["python", "-c"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        *container["args"],
        env={"PATH": os.environ["PATH"], "BASE": endpoint.base, "TIMEOUT": "20", **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_it_prints_the_tokens(pod: Callable[..., Document], endpoint: Endpoint) -> None:
    assert await run(pod(), endpoint) == (0, "smollm2: A book\n")


async def test_it_trusts_any_certificate(pod: Callable[..., Document], endpoint: Endpoint) -> None:
    endpoint.base = endpoint.secure_base
    assert await run(pod(), endpoint) == (0, "smollm2: A book\n")


async def test_an_answer_without_a_token_fails(pod: Callable[..., Document], endpoint: Endpoint) -> None:
    endpoint.tokens = []
    code, output = await run(pod(), endpoint)
    assert code == 1
    assert "without a token" in output


async def test_a_stream_that_breaks_off_fails(pod: Callable[..., Document], endpoint: Endpoint) -> None:
    endpoint.error = True
    code, output = await run(pod(), endpoint)
    assert code == 1
    assert "the replica died" in output


async def test_a_refusal_is_printed(pod: Callable[..., Document], endpoint: Endpoint) -> None:
    endpoint.key = "secret"
    code, output = await run(pod(), endpoint)
    assert code == 1
    assert "answered 401" in output
    assert "wrong API key" in output
    assert await run(pod(), endpoint, API_KEY="secret\nother\n") == (0, "smollm2: A book\n")


async def test_an_endpoint_that_is_away_is_named(pod: Callable[..., Document], endpoint: Endpoint) -> None:
    endpoint.base = "http://127.0.0.1:9"
    code, output = await run(pod(), endpoint)
    assert code == 1
    assert "http://127.0.0.1:9 cannot be reached" in output


def test_it_asks_the_service_of_the_named_deployment(pod: Callable[..., Document]) -> None:
    def environment(values: Document) -> dict[str, Any]:
        return {item["name"]: item for item in pod(values)["spec"]["containers"][0]["env"]}

    assert environment({})["BASE"]["value"] == "http://smallest.octavo-system.svc:8000"
    assert environment({"watchNamespaces": ["team"]})["BASE"]["value"] == "http://smallest.team.svc:8000"
    named = {"test": {"servingDeployment": "qwen", "namespace": "models", "port": 80}}
    assert environment(named)["BASE"]["value"] == "http://qwen.models.svc:80"
    assert environment({"test": {"scheme": "https"}})["BASE"]["value"].startswith("https://smallest.")
    key = environment({"test": {"apiKeySecretRef": {"name": "keys", "key": "api-keys"}}})["API_KEY"]
    assert key["valueFrom"] == {"secretKeyRef": {"name": "keys", "key": "api-keys"}}


def test_it_is_a_test_hook_with_no_rights(pod: Callable[..., Document], render: Callable[..., list[Document]]) -> None:
    found = pod()
    assert found["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert found["spec"]["automountServiceAccountToken"] is False
    assert not [d for d in render({"test": {"servingDeployment": ""}}) if d["kind"] == "Pod"]
