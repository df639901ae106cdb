"""Processor time of an engine's service for each token: everything but the model.

A real engine process with made-up tokens, one gateway with ``--streams`` streams. The processor time of the engine
process (scheduler, protobuf, gRPC, event loop) is divided by the tokens that arrived. ``core_us_per_token`` is the
scheduler's part of it, measured alone.

    python benchmarks/service_cpu.py --streams 256 --tokens 500
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time

import grpc

from octavo_api.protocol import PROTOCOL_VERSION, client_options
from octavo_api.sampling import SamplingParams
from octavo_api.settings import EngineSettings
from octavo_api.v1 import replica_pb2, replica_pb2_grpc
from octavo_engine.core.request import NewRequest
from octavo_engine.llm_engine import LLMEngine
from octavo_engine.startup.synthetic import load_synthetic
from octavo_testing.processes import cpu_seconds

VOCAB = 32000
PROMPT_TOKENS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=500, help="of each stream")
    parser.add_argument("--step-ms", type=float, default=20.0)
    options = parser.parse_args()
    process, port = start_engine(options)
    try:
        result = asyncio.run(measure(process.pid, port, options))
    finally:
        process.terminate()
        process.wait()
    result["core_us_per_token"] = round(core_alone(options), 2)
    json.dump(result, sys.stdout, indent=2)
    print()


def settings(options: argparse.Namespace) -> EngineSettings:
    return EngineSettings(max_num_seqs=options.streams, max_num_batched_tokens=max(2048, options.streams))


def num_blocks(options: argparse.Namespace) -> int:
    return options.streams * ((PROMPT_TOKENS + options.tokens) // 16 + 2)


def start_engine(options: argparse.Namespace) -> tuple[subprocess.Popen[str], int]:
    chosen = settings(options)
    command = [
        sys.executable, "-m", "octavo_engine", "--synthetic", "--model", f"synthetic://{VOCAB}",
        "--synthetic-step-ms", str(options.step_ms), "--synthetic-blocks", str(num_blocks(options)),
        "--set", f"max_num_seqs={chosen.max_num_seqs}",
        "--set", f"max_num_batched_tokens={chosen.max_num_batched_tokens}",
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("listening on "):
            return process, int(line.rpartition(":")[2])
    raise SystemExit(f"the engine ended with {process.wait()}")


def prompt(stream: int) -> list[int]:
    return [stream, *range(1, PROMPT_TOKENS)]


async def measure(pid: int, port: int, options: argparse.Namespace) -> dict[str, float | int]:
    """Measures from the step in which every stream has a token to the last one."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=client_options()) as channel:
        call = replica_pb2_grpc.ReplicaStub(channel).Attach()
        await call.write(
            replica_pb2.GatewayMessage(greeting=replica_pb2.Greeting(version=PROTOCOL_VERSION, gateway="benchmark"))
        )
        await call.read()
        sampling = SamplingParams(max_tokens=options.tokens, ignore_eos=True).to_proto()
        for stream in range(options.streams):
            submit = replica_pb2.Submit(id=stream, token_ids=prompt(stream), sampling=sampling)
            await call.write(replica_pb2.GatewayMessage(submit=submit))
        started: set[int] = set()
        ended = tokens = steps = 0
        cpu = wall = 0.0
        while ended < options.streams:
            message = await call.read()
            outputs = message.step.outputs
            if len(started) == options.streams:
                tokens += sum(len(output.token_ids) for output in outputs)
                steps += 1
            else:
                started.update(output.id for output in outputs)
                cpu, wall = cpu_seconds(pid), time.perf_counter()
            ended += sum(output.finish_reason != 0 for output in outputs)
        cpu, wall = cpu_seconds(pid) - cpu, time.perf_counter() - wall
    return {
        "streams": options.streams,
        "step_ms": options.step_ms,
        "tokens": tokens,
        "messages": steps,
        "tokens_per_s": round(tokens / wall),
        "server_cpu_share": round(cpu / wall, 3),
        "server_us_per_token": round(cpu / tokens * 1e6, 2),
    }


def core_alone(options: argparse.Namespace) -> float:
    """Returns the microseconds for each token of scheduler and runner without the service."""
    engine = load_synthetic(f"synthetic://{VOCAB}", settings(options), num_blocks=num_blocks(options))
    llm_engine = LLMEngine(engine.core_config, engine.runner)
    sampling = SamplingParams(max_tokens=options.tokens, ignore_eos=True)
    for stream in range(options.streams):
        llm_engine.add_request(NewRequest(stream, prompt(stream), None, sampling))
    tokens = 0
    started = time.process_time()
    while llm_engine.has_unfinished_requests:
        tokens += sum(len(output.token_ids) for output in llm_engine.step())
        llm_engine.core.load()
    return (time.process_time() - started) / tokens * 1e6


if __name__ == "__main__":
    main()
