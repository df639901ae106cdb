"""A gateway with its two front ends; ``python -m octavo_router.server`` runs it as a process of its own."""

import argparse
import asyncio
import logging
import signal
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Sequence
from functools import partial
from pathlib import Path

import uvloop

from octavo_api import model_source
from octavo_api.command_line import read_assignments, read_secret
from octavo_api.errors import ConfigurationError, StartupError
from octavo_api.settings import RouterSettings
from octavo_router.answers.gateway import Gateway, Pool
from octavo_router.fleet.dispatch import ReplicaPool
from octavo_router.fleet.registry import ReplicaAddress
from octavo_router.front.keys import ApiKeys
from octavo_router.front.listen import bind
from octavo_router.front.tls import Certificate
from octavo_router.http.app import HttpApp
from octavo_router.http.server import HttpServer
from octavo_router.metrics import Metrics
from octavo_router.rpc.server import RpcServer
from octavo_text import ModelText

logger = logging.getLogger(__name__)

RENEW_S = 2.0
"""How often the certificate's files are looked at."""


class GatewayServer:
    """One gateway: an HTTP and a gRPC listener over one pool, which stays its owner's to close.

    ``app`` is the ASGI application, also for servers that mount it under a ``root_path``. ``metrics`` is what the pool
    was given as its observer, so that ``/metrics`` has the router's families. With a ``certificate`` both listeners
    speak TLS only.
    """

    def __init__(
        self,
        *,
        text: ModelText,
        served_name: str,
        settings: RouterSettings,
        pool: Pool,
        keys: ApiKeys | None = None,
        metrics: Metrics | None = None,
        certificate: Certificate | None = None,
    ) -> None:
        self.metrics = metrics or Metrics()
        self.gateway = Gateway(text=text, served_name=served_name, settings=settings, pool=pool, observer=self.metrics)
        self.app = HttpApp(self.gateway, keys, self.metrics)
        self._keys = keys
        if keys is not None:
            keys.on_reload = partial(self.metrics.secret_reload, "api_keys")
        self._certificate = certificate
        self._renewing: asyncio.Task[None] | None = None
        self._http: HttpServer | None = None
        self._rpc: RpcServer | None = None

    @property
    def http_port(self) -> int:
        return self._http.port if self._http is not None else 0

    @property
    def grpc_port(self) -> int:
        return self._rpc.port if self._rpc is not None else 0

    @property
    def active_requests(self) -> int:
        return self.gateway.active_requests

    async def start(self, http_host: str, http_port: int, grpc_host: str, grpc_port: int) -> None:
        """Listens; port 0 takes a free one. Raises ``PortInUse`` and leaves nothing behind."""
        listener = bind("HTTP", http_host, http_port)
        rpc = RpcServer(self.gateway, self._keys, self.metrics, self._certificate)
        try:
            await rpc.start(grpc_host, grpc_port)
        except StartupError:
            listener.close()
            await rpc.stop()
            raise
        self._rpc = rpc
        self._http = HttpServer(self.app, listener, self._certificate.context if self._certificate else None)
        await self._http.started()
        if self._certificate is not None:
            self._renewing = asyncio.create_task(self._renew(self._certificate), name="certificate")

    async def drain(self, timeout_s: float) -> bool:
        """Takes no new connections and requests, lets running ones end; returns whether they all did in time.

        From the first moment ``/ready`` and gRPC health say no.
        """
        parts: list[Awaitable[bool]] = [self.gateway.drain(timeout_s)]
        if self._http is not None:
            parts.append(self._http.drain(timeout_s))
        if self._rpc is not None:
            parts.append(self._rpc.drain(timeout_s))
        return all(await asyncio.gather(*parts))

    async def stop(self) -> None:
        """Ends now; what still runs is aborted in the engines."""
        self.gateway.draining = True
        if self._renewing is not None:
            self._renewing.cancel()
        if self._rpc is not None:
            await self._rpc.stop()
        if self._http is not None:
            await self._http.stop()

    async def _renew(self, certificate: Certificate) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            taken_up = await asyncio.to_thread(certificate.refresh)
            if taken_up is not None:
                self.metrics.secret_reload("tls", taken_up)

    def reconfigure(self, settings: RouterSettings, *, served_name: str | None = None) -> None:
        """Holds for requests that come later. The pool has a ``reconfigure`` of its own."""
        self.gateway.settings = settings
        self.gateway.served_name = served_name or self.gateway.served_name


def parse_replica(text: str) -> ReplicaAddress:
    """Reads ``NAME=HOST:PORT``; raises ``ConfigurationError``."""
    name, _, address = text.partition("=")
    host, _, port = address.rpartition(":")
    if not (name and host and port.isdecimal() and 0 < int(port) < 65536):
        raise ConfigurationError(f"--replica: got {text!r}, allowed: NAME=HOST:PORT")
    return ReplicaAddress(name, host.strip("[]"), int(port))


def parse_replicas(texts: Sequence[str]) -> list[ReplicaAddress]:
    """Reads each; raises ``ConfigurationError``, also where two have one name."""
    replicas = [parse_replica(text) for text in texts]
    counts = Counter(replica.name for replica in replicas)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise ConfigurationError(f"--replica: got {twice[0]!r} more than once, allowed: names that differ")
    return replicas


def parse_port(text: str) -> int:
    """Reads a port to listen on; for argparse."""
    if not (text.isdecimal() and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed: 0 to 65535")
    return int(text)


def parse_settings(pairs: Sequence[str]) -> RouterSettings:
    """Reads ``key=value`` pairs; raises ``ConfigurationError``."""
    values = read_assignments(pairs)
    return RouterSettings.read({name.removeprefix("router."): value for name, value in values.items()}, where="router")


async def serve(arguments: argparse.Namespace) -> None:
    settings = parse_settings(arguments.set)
    replicas = parse_replicas(arguments.replica)
    keys = ApiKeys.load(arguments.api_key_file) if arguments.api_key_file else None
    certificate = Certificate.load(arguments.tls_folder) if arguments.tls_folder else None
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
    """Returns at SIGTERM or SIGINT; the next one ends the process as usual."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, event.set)
    await event.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="octavo_router.server", description=__doc__)
    parser.add_argument("--model", default=model_source.EMBEDDED, help="URI of the model (default: %(default)s)")
    parser.add_argument("--revision", help="commit, tag or branch of a hf:// model")
    parser.add_argument("--served-name", help="the model's name in requests (default: the last part of the URI)")
    parser.add_argument("--replica", action="append", default=[], metavar="NAME=HOST:PORT", help="one engine; repeat")
    parser.add_argument("--host", default="127.0.0.1", help="address of both listeners (default: %(default)s)")
    parser.add_argument("--http-port", type=parse_port, default=8000, help="(default: %(default)s; 0: any)")
    parser.add_argument("--grpc-port", type=parse_port, default=9000, help="(default: %(default)s; 0: any)")
    parser.add_argument("--api-key-file", type=Path, help="one `NAME KEY` a line; without it no key is asked for")
    parser.add_argument("--tls-folder", type=Path, help="holds tls.crt and tls.key, for both listeners")
    parser.add_argument("--secret-file", type=Path, help="holds what the engines ask for")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a router setting; repeat")
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
