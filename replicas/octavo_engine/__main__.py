"""``python -m octavo_engine``: one engine as a plain process."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from octavo_api.errors import StartupError
from octavo_api.settings import EngineSettings
from octavo_api.startup.command_line import read_assignments, read_secret
from octavo_engine.engine import freeze_gc_heap
from octavo_engine.service.server import EngineServer, Loaded
from octavo_engine.startup.synthetic import load_synthetic

DRAIN_SECONDS = 600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM (which drains) or SIGINT; return the exit code.

    The exit code is 1 if the engine cannot start, and if it has failed and needs a restart.
    """
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        secret = read_secret(options.secret_file) if options.secret_file else ""
        settings = EngineSettings.read(read_assignments(options.set), where="--set")
        loaded = _load(options, settings)
        return asyncio.run(_serve(loaded, options, secret))
    except StartupError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m octavo_engine", description="Serve one engine replica to gateways over gRPC."
    )
    parser.add_argument("--model", required=True, help="address of the model, as in spec.model.uri")
    parser.add_argument("--revision", help="branch, tag or commit of a hub model")
    parser.add_argument("--host", default="127.0.0.1", help="address of the service (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=0, help="port of the service; 0 chooses a free one (default)")
    parser.add_argument(
        "--replica", default=f"engine-{os.getpid()}", help="name of this replica in logs and metrics of gateways"
    )
    parser.add_argument("--secret-file", type=Path, help="file with the secret that gateways must send")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an engine setting; repeatable")
    parser.add_argument("--num-cpus", type=float, help="CPUs to compute with (default: the limit of the cgroup)")
    parser.add_argument(
        "--replicas-on-node",
        type=int,
        default=1,
        help="number of engines that share the memory of this machine (default: 1)",
    )
    parser.add_argument(
        "--drain-seconds",
        type=float,
        default=DRAIN_SECONDS,
        help="seconds that SIGTERM waits for running requests (default: 600)",
    )
    load_test = parser.add_argument_group("load tests", "an engine without a model: made-up tokens in a given time")
    load_test.add_argument(
        "--synthetic", action="store_true", help="use the synthetic engine; --model is synthetic://VOCAB_SIZE"
    )
    load_test.add_argument("--synthetic-step-ms", type=float, default=10.0, help="milliseconds of a step (default: 10)")
    load_test.add_argument(
        "--synthetic-token-us", type=float, default=0.0, help="microseconds added for each token of a step (default: 0)"
    )
    load_test.add_argument("--synthetic-blocks", type=int, default=4096, help="blocks of the KV cache (default: 4096)")
    return parser


def _load(options: argparse.Namespace, settings: EngineSettings) -> Loaded:
    if options.synthetic:
        return load_synthetic(
            options.model,
            settings,
            num_blocks=options.synthetic_blocks,
            step_time_s=options.synthetic_step_ms / 1e3,
            token_time_s=options.synthetic_token_us / 1e6,
        )
    from octavo_engine.startup.loading import load_engine  # torch takes seconds to import

    return load_engine(
        options.model,
        options.revision,
        settings,
        num_cpus=options.num_cpus,
        replicas_on_node=options.replicas_on_node,
        memory_limit=None,
        report=lambda line: print(line, file=sys.stderr, flush=True),
    )


async def _serve(loaded: Loaded, options: argparse.Namespace, secret: str) -> int:
    server = await EngineServer.start(
        loaded, replica=options.replica, host=options.host, port=options.port, secret=secret
    )
    freeze_gc_heap()
    drain, stop = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    # A second SIGTERM does not wait for the first.
    loop.add_signal_handler(signal.SIGTERM, lambda: stop.set() if drain.is_set() else drain.set())
    loop.add_signal_handler(signal.SIGINT, stop.set)
    print(f"listening on {options.host}:{server.port}", file=sys.stderr, flush=True)
    await _first(drain, stop, server.failed)
    if drain.is_set() and not stop.is_set():
        print(f"draining {server.active_requests} requests", file=sys.stderr, flush=True)
        draining = asyncio.create_task(server.drain(options.drain_seconds))
        stopping = asyncio.create_task(_first(stop, server.failed))
        await asyncio.wait({draining, stopping}, return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
        stopping.cancel()
    await server.stop()
    return 1 if server.failed.is_set() else 0


async def _first(*events: asyncio.Event) -> None:
    """Wait for any of ``events``."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


if __name__ == "__main__":
    sys.exit(main())
