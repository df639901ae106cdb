"""The operator's process: it starts, serves, and ends when it is told to."""
# ruff: noqa: ASYNC110

import asyncio
import json
import os
import signal
import sys
import time

import aiohttp
import pytest

from octavo_testing.operator.fakes.contract_kube import deployment
from octavo_testing.processes import free_ports


async def status_of(port: int, path: str, host: str = "127.0.0.1") -> int:
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}{path}") as response:
            return response.status
    except aiohttp.ClientError:
        return 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_at_once_with_status_0_and_json_logs(api_server, tmp_path, number):
    document = deployment("default", "books")
    document["spec"]["rayCluster"] = {"external": {"dashboardURL": "http://127.0.0.1:9"}}
    api_server.api.create("user", document)
    [port] = free_ports(1)
    options = ["--image", "octavo:1", "--health-port", str(port), "--metrics-port", "0", "--log-format", "json"]
    options += ["--bind-address", "127.0.0.1"]
    with (tmp_path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "octavo_operator.main", *options, stderr=log, env={**os.environ}
        )
    try:
        async with asyncio.timeout(60):
            while await status_of(port, "/readyz") != 200:
                assert process.returncode is None, (tmp_path / "log").read_text()
                await asyncio.sleep(0.1)
            while "status" not in api_server.api.get("ServingDeployment", "default", "books"):
                await asyncio.sleep(0.05)
        assert await status_of(port, "/healthz") == 200
        assert await status_of(port, "/healthz", "[::1]") == 0, "where it was not told to listen"
        process.send_signal(number)
        began = time.monotonic()
        assert await asyncio.wait_for(process.wait(), 20) == 0
        assert time.monotonic() - began < 15
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert lines[-1]["message"] == "stopped"
    assert not [line for line in lines if line["level"] in ("error", "critical") or "Traceback" in json.dumps(line)]
