"""A gateway as a process of its own: ``python -m octavo_router``."""

import argparse
import asyncio
import logging
import signal
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import uvloop

from octavo_api.errors import ConfigurationError, StartupError
from octavo_api.settings import RouterSettings
from octavo_api.startup import model_source
from octavo_api.startup.command_line import read_assignments, read_secret
from octavo_router.fleet.pool import ReplicaPool
from octavo_router.fleet.replica_status import ReplicaAddress
from octavo_router.front.keys import ApiKeys
from octavo_router.front.tls import Certificate
from octavo_router.gateway_server import GatewayServer
from octavo_router.metrics import Metrics
from octavo_text import ModelText


def parse_replica(text: str) -> ReplicaAddress:
    """Read ``NAME=HOST:PORT``. Raise ``ConfigurationError``."""
    name, _, address = text.partition("=")
    host, _, port = address.rpartition(":")
    if not (name and host and port.isdecimal() and 0 < int(port) < 65536):
        raise ConfigurationError(f"--replica: got {text!r}, allowed: NAME=HOST:PORT")
    return ReplicaAddress(name, host.strip("[]"), int(port))


def parse_replicas(texts: Sequence[str]) -> list[ReplicaAddress]:
    """Read each replica. Raise ``ConfigurationError``, also if two replicas have the same name."""
    replicas = [parse_replica(text) for text in texts]
    counts = Counter(replica.name for replica in replicas)
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise ConfigurationError(
            f"--replica: got {repeated[0]!r} more than once, allowed: a different name for each replica"
        )
    return replicas


def parse_port(text: str) -> int:
    """Read a port to listen on, for argparse."""
    if not (text.isdecimal() and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed: 0 to 65535")
    return int(text)


def parse_settings(pairs: Sequence[str]) -> RouterSettings:
    """Read ``key=value`` pairs. Raise ``ConfigurationError``."""
    values = read_assignments(pairs)
    return RouterSettings.read({name.removeprefix("router."): value for name, value in values.items()}, where="router")


async def serve(arguments: argparse.Namespace) -> None:
    settings = parse_settings(arguments.set)
    replicas = parse_replicas(arguments.replica)
    keys = ApiKeys.from_file(arguments.api_key_file) if arguments.api_key_file else None
    certificate = Certificate.from_folder(arguments.tls_folder) if arguments.tls_folder else None
    secret = read_secret(arguments.secret_file) if arguments.secret_file else ""
    text = ModelText.load(model_source.locate(arguments.model, arguments.revision, weights=False))
    metrics = Metrics()
    pool = ReplicaPool(settings, gateway=socket.gethostname(), secret=secret, metrics=metrics)
    server = GatewayServer(
        text=text,
        served_name=arguments.served_name or arguments.model.rpartition("/")[2],
        settings=settings,
        pool=pool,
        keys=keys,
        metrics=metrics,
        certificate=certificate,
    )
    await server.start(arguments.host, arguments.http_port, arguments.host, arguments.grpc_port)
    pool.update_replicas(replicas)
    print(f"octavo gateway: http {server.http_port}, grpc {server.grpc_port}", flush=True)
    await _terminated()
    await server.drain(settings.request_timeout_seconds)
    await server.stop()
    await pool.close()


async def _terminated() -> None:
    """Wait for SIGTERM or SIGINT. The next signal ends the process as usual."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, event.set)
    await event.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m octavo_router", description="Serve HTTP and gRPC over engines.")
    parser.add_argument("--model", default=model_source.EMBEDDED, help="URI of the model (default: %(default)s)")
    parser.add_argument("--revision", help="commit, tag or branch of a hf:// model")
    parser.add_argument("--served-name", help="the model's name in requests (default: the last part of the URI)")
    parser.add_argument(
        "--replica",
        action="append",
        default=[],
        metavar="NAME=HOST:PORT",
        help="name and address of an engine; may be repeated",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address of both listeners (default: %(default)s)")
    parser.add_argument(
        "--http-port", type=parse_port, default=8000, help="HTTP port (default: %(default)s; 0: any free port)"
    )
    parser.add_argument(
        "--grpc-port", type=parse_port, default=9000, help="gRPC port (default: %(default)s; 0: any free port)"
    )
    parser.add_argument(
        "--api-key-file", type=Path, help="file with one `NAME KEY` per line; without it, no API key is required"
    )
    parser.add_argument("--tls-folder", type=Path, help="folder with tls.crt and tls.key for both listeners")
    parser.add_argument("--secret-file", type=Path, help="file with the secret that the engines require")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="router setting; may be repeated"
    )
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(arguments))
    except StartupError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
