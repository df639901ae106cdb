"""Ports, draining, reconfiguration, and the application below a prefix."""

import asyncio
import json
import sys

import grpc
import httpx
import pytest

from octavo_api.errors import ConfigurationError, PortInUse
from octavo_api.settings import RouterSettings
from octavo_api.v1 import inference_pb2, inference_pb2_grpc
from octavo_router.__main__ import main, parse_replica, parse_settings
from octavo_router.gateway_server import GatewayServer
from octavo_testing.waiting import eventually_async

ASK = {"model": "bytes", "prompt": "x"}


def http_client(server):
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.http_port}", verify=False, timeout=10)


@pytest.mark.parametrize("taken", ["http", "grpc"])
async def test_a_port_in_use_is_an_error_that_leaves_no_listener(server, pool, text, settings, taken):
    other = GatewayServer(text=text, served_name="bytes", settings=settings, pool=pool)
    ports = (server.http_port, 0) if taken == "http" else (0, server.grpc_port)
    with pytest.raises(PortInUse, match="in use"):
        await other.start("127.0.0.1", ports[0], "127.0.0.1", ports[1])
    assert (other.http_port, other.grpc_port) == (0, 0)
    await other.stop()
    async with http_client(server) as http:
        assert (await http.get("/health")).status_code == 200


async def test_a_port_is_free_again_after_stop(text, settings, pool):
    ports = (0, 0)
    for _ in range(2):
        server = GatewayServer(text=text, served_name="bytes", settings=settings, pool=pool)
        await server.start("127.0.0.1", ports[0], "127.0.0.1", ports[1])
        ports = (server.http_port, server.grpc_port)
        await server.stop()


async def test_a_host_of_another_machine_is_named_in_the_error(text, settings, pool):
    server = GatewayServer(text=text, served_name="bytes", settings=settings, pool=pool)
    with pytest.raises(ConfigurationError, match=r"192\.0\.2\.1"):
        await server.start("192.0.2.1", 0, "127.0.0.1", 0)


async def test_draining_finishes_streams_and_rejects_new_requests(server, pool, write):
    go = asyncio.Event()
    pool.answer = lambda request: write.Script(
        [[write.output("a")], go, [write.output("b")], [write.output("c", finish="length")]]
    )
    async with (
        http_client(server) as http,
        http_client(server) as newcomer,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
        http.stream("POST", "/v1/completions", json=ASK | {"stream": True}) as stream,
    ):
        rpc = inference_pb2_grpc.InferenceStub(channel).GenerateStream(inference_pb2.GenerateRequest(text="x"))
        lines = stream.aiter_lines()
        seen = [await anext(lines)]
        texts = [(await rpc.read()).choices[0].text]
        draining = asyncio.create_task(server.drain(10))
        await eventually_async("the gateway is not ready", lambda: not server.gateway.ready)

        async def refused():
            try:
                answer = await newcomer.get("/ready")
            except httpx.ConnectError:
                return True
            except httpx.TransportError:
                return False  # connected while the listener closed, and was never accepted
            assert answer.status_code == 503
            assert answer.headers["connection"] == "close"
            return False

        await eventually_async("new connections are refused", refused)
        assert not draining.done()
        go.set()
        seen += [line async for line in lines]
        while (chunk := await rpc.read()) is not grpc.aio.EOF:
            texts += [choice.text for choice in chunk.choices]
        assert await draining
    assert texts == ["a", "b", "c"]
    assert [json.loads(line[6:])["choices"][0]["text"] for line in seen if line.startswith("data: {")] == [
        "a",
        "b",
        "c",
    ]
    assert "data: [DONE]" in seen


async def test_a_draining_gateway_rejects_requests_of_open_connections(server):
    async with (
        http_client(server) as http,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        server.gateway.draining = True
        answer = await http.post("/v1/completions", content=b"not read")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["code"] == "draining"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await inference_pb2_grpc.InferenceStub(channel).Generate(inference_pb2.GenerateRequest(text="x"))
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_drain_past_its_time_returns_false_and_stop_aborts(server, pool, write):
    pool.answer = lambda request: write.Script([[write.output("a")], asyncio.Event()])
    async with http_client(server) as http, http.stream("POST", "/v1/completions", json=ASK | {"stream": True}):
        assert not await server.drain(0.2)
        await server.stop()
        await asyncio.wait_for(pool.last.closed.wait(), 20)


async def test_settings_change_while_the_gateway_serves(server, pool):
    async with http_client(server) as http:
        server.reconfigure(RouterSettings(max_body_bytes=1024), served_name="renamed")
        assert (await http.post("/v1/completions", json=ASK)).status_code == 404
        assert (await http.post("/v1/completions", json=ASK | {"model": "renamed"})).status_code == 200
        large = ASK | {"prompt": "x" * 2000}
        assert (await http.post("/v1/completions", json=large)).status_code == 413


async def test_the_request_timeout_is_the_deadline_of_every_request(server, pool):
    clock = asyncio.get_running_loop().time
    async with http_client(server) as http:
        for seconds in (7, 3600):
            server.reconfigure(RouterSettings(request_timeout_seconds=seconds))
            earliest = clock() + seconds
            await http.post("/v1/completions", json=ASK)
            assert earliest <= pool.requests[-1].deadline <= clock() + seconds


@pytest.mark.parametrize("prefixed", [False, True])
async def test_the_application_below_a_prefix(text, settings, pool, prefixed):
    """Accept the complete path, as Serve sends it, and the path after the prefix."""
    server = GatewayServer(text=text, served_name="bytes", settings=settings, pool=pool)
    transport = httpx.ASGITransport(app=server.app, root_path="/apps/llm")
    base = "http://test" + ("/apps/llm" if prefixed else "")
    async with httpx.AsyncClient(transport=transport, base_url=base) as http:
        assert (await http.post("/v1/completions", json=ASK)).json()["choices"][0]["text"] == "Hello, world"
        assert (await http.get("/v1/models")).json()["data"][0]["id"] == "bytes"
        assert (await http.get("/health")).status_code == 200
        wrong = await http.get("/v1/nothing")
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (404, "not_found")


def test_command_line_values_are_checked():
    address = parse_replica("a=[::1]:80")
    assert (address.name, address.host, address.port) == ("a", "::1", 80)
    for wrong in ("a", "a=b", "=b:1", "a=b:x", "a=b:0", "a=:1"):
        with pytest.raises(ConfigurationError, match="NAME=HOST:PORT"):
            parse_replica(wrong)
    assert parse_settings(["max_inflight_requests=7", "router.policy=round_robin"]).max_inflight_requests == 7
    for wrong in ("x", "x=1", "max_inflight_requests=many"):
        with pytest.raises(ConfigurationError):
            parse_settings([wrong])


def test_a_failed_start_prints_one_line_and_exits(capsys, tmp_path):
    assert main(["--model", f"file://{tmp_path}/none"]) == 1
    assert main(["--replica", "x"]) == 1
    assert main(["--api-key-file", str(tmp_path / "none")]) == 1
    assert main(["--secret-file", str(tmp_path / "none")]) == 1
    (tmp_path / "empty").touch()
    assert main(["--secret-file", str(tmp_path / "empty")]) == 1
    assert main(["--replica", "a=x:1", "--replica", "a=x:2"]) == 1
    assert main(["--set", "policy=["]) == 1
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 7
    assert all(line.startswith("error: ") for line in errors)


@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_a_port_out_of_range_is_an_error_with_the_allowed_range(capsys, port):
    with pytest.raises(SystemExit):
        main([f"--http-port={port}"])
    assert f"--http-port: got '{port}', allowed: 0 to 65535" in capsys.readouterr().err


async def test_the_process_drains_at_sigterm(byte_model, key_file):
    command = [sys.executable, "-m", "octavo_router", "--http-port", "0", "--grpc-port", "0"]
    command += ["--model", f"file://{byte_model.path}", "--served-name", "bytes", "--api-key-file", str(key_file)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), 20)).decode()
        port = int(line.split("http ")[1].split(",")[0])
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", verify=False) as http:
            assert (await http.get("/health")).status_code == 200
            assert (await http.get("/ready")).status_code == 503
            assert (await http.get("/v1/models")).status_code == 401
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 30) == 0
    finally:
        if process.returncode is None:
            process.kill()
