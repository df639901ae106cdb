"""CPU time of one gateway process for each token that it streams to OpenAI clients.

Three processes run: an engine that makes tokens up (real scheduler, real protocol), the gateway as users run it, and
this one as the load. The load is ``--streams`` connections that each request ``--tokens`` tokens at once. The gateway's
CPU time is read from /proc before the first request and after the last byte, so it includes the cost of requests.

    python benchmarks/gateway_cpu.py --streams 256 --tokens 200 --step-ms 20
"""

import argparse
import asyncio
import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx
import uvloop

from octavo_testing.processes import cpu_seconds


class Stream(asyncio.Protocol):
    """One request; counts events and knows when the answer has ended."""

    def __init__(self, request: bytes) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self.events = 0
        self.first: float | None = None
        self._request = request
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.first = self.first or time.perf_counter()
        self.events += data.count(b"data: {")
        self._tail = (self._tail + data)[-64:]
        if b"data: [DONE]" in self._tail and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("closed before the end"))


@contextlib.contextmanager
def process(*arguments: str, says: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Starts a module; yields its id and what it said once it listens."""
    child = subprocess.Popen(
        [sys.executable, "-m", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert child.stdout is not None
    try:
        for line in child.stdout:
            if match := re.search(says, line):
                break
        else:
            raise SystemExit(f"{arguments[0]} ended with {child.wait()}")
        yield child.pid, match
    finally:
        child.kill()
        child.wait()


def request(arguments: argparse.Namespace, number: int) -> bytes:
    body = {
        "model": "smollm2",
        "prompt": f"Stream number {number}. " + "A prompt of some length. " * 8,
        "max_tokens": arguments.tokens,
        "ignore_eos": True,
        "stream": True,
    }
    if arguments.stop:
        body["stop"] = ["\x01never\x02"]
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


async def load(port: int, gateway: int, arguments: argparse.Namespace) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    before, started = cpu_seconds(gateway), time.perf_counter()
    streams = [
        (await loop.create_connection(lambda number=number: Stream(request(arguments, number)), "127.0.0.1", port))[1]
        for number in range(arguments.streams)
    ]
    await asyncio.gather(*(stream.done for stream in streams))
    wall = time.perf_counter() - started
    used = cpu_seconds(gateway) - before
    tokens = arguments.streams * arguments.tokens
    return {
        "tokens": tokens,
        "events": sum(stream.events for stream in streams),
        "seconds": round(wall, 2),
        "tokens_per_second": round(tokens / wall),
        "gateway_cores": round(used / wall, 3),
        "microseconds_per_token": round(1e6 * used / tokens, 1),
    }


async def ready(port: int) -> None:
    async with httpx.AsyncClient() as http:
        for _ in range(200):
            if (await http.get(f"http://127.0.0.1:{port}/ready")).status_code == 200:
                return
            await asyncio.sleep(0.05)
    raise SystemExit("the gateway never became ready")


async def measure(port: int, gateway: int, arguments: argparse.Namespace) -> None:
    await ready(port)
    for _ in range(arguments.rounds):
        print(json.dumps(await load(port, gateway, arguments)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stop", action="store_true", help="with a stop string, which costs a step for each token")
    arguments = parser.parse_args()
    engine = ("octavo_engine", "--synthetic", "--model", "synthetic://49152", "--replica", "r0")
    engine += ("--synthetic-step-ms", str(arguments.step_ms), "--synthetic-blocks", "65536")
    engine += ("--set", f"max_num_seqs={arguments.streams}", "--set", "max_num_batched_tokens=8192")
    with process(*engine, says=r"127\.0\.0\.1:(\d+)") as (_, found):
        gateway = ("octavo_router", "--http-port", "0", "--grpc-port", "0")
        gateway += ("--replica", f"r0=127.0.0.1:{found[1]}", "--set", f"max_inflight_requests={arguments.streams}")
        with process(*gateway, says=r"http (\d+)") as (pid, said):
            uvloop.run(measure(int(said[1]), pid, arguments))


if __name__ == "__main__":
    main()
