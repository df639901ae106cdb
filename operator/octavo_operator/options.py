"""Command line of the operator, which the chart sets. Options with a value have environment variables, too."""

import argparse
import ipaddress
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from octavo_api.errors import ConfigurationError
from octavo_operator.model.defaults import Defaults

RAY_VERSION = "2.60.0"
"""The Ray that this version of Octavo is made for; patch versions may differ."""
_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Options:
    image: str = ""
    namespaces: tuple[str, ...] = ()
    """Namespaces to watch; all if empty."""
    workers: int = 4
    log_level: str = "info"
    log_format: str = "json"
    bind_address: str = ""
    """Address to listen on; all interfaces if empty."""
    health_port: int = 8080
    metrics_port: int = 8081
    resync_seconds: float = 600.0
    operator_namespace: str = ""
    operator_labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def defaults(self) -> Defaults:
        return Defaults(
            image=self.image,
            ray_version=RAY_VERSION,
            operator_namespace=self.operator_namespace,
            operator_labels=self.operator_labels,
        )


def parse_options(
    arguments: Sequence[str], environ: Mapping[str, str] = os.environ, *, program: str = "octavo operator"
) -> Options:
    """Read the options; raise ``ConfigurationError`` if one is wrong. Help and unknown arguments end the process."""
    parser = _parser(environ, program)
    found = parser.parse_args(arguments)
    namespaces = found.namespace or _words(environ.get("OCTAVO_NAMESPACES", ""))
    if found.all_namespaces and found.namespace:
        raise ConfigurationError("use either --namespace or --all-namespaces, not both")
    return Options(
        image=_required("--image", found.image),
        namespaces=() if found.all_namespaces else tuple(dict.fromkeys(namespaces)),
        workers=_number("--workers", found.workers, 1, 256),
        log_level=_one_of("--log-level", found.log_level, _LEVELS),
        log_format=_one_of("--log-format", found.log_format, ("json", "text")),
        bind_address=_address("--bind-address", found.bind_address),
        health_port=_number("--health-port", found.health_port, 0, 65535),
        metrics_port=_number("--metrics-port", found.metrics_port, 0, 65535),
        resync_seconds=_number("--resync-seconds", found.resync_seconds, 1, 86400),
        operator_namespace=found.operator_namespace,
        operator_labels=_labels(found.operator_labels),
    )


def _parser(environ: Mapping[str, str], program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Reconcile ServingDeployments: create Ray clusters by KubeRay, and deploy Octavo by Ray Serve.",
        epilog="Each option has an environment variable, such as OCTAVO_LOG_LEVEL. The command line has precedence.",
        allow_abbrev=False,
    )

    def option(name: str, default: str, description: str) -> None:
        variable = f"OCTAVO_{name.replace('-', '_').upper()}"
        parser.add_argument(f"--{name}", default=environ.get(variable, default), help=description)

    parser.add_argument(
        "--namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="namespace to watch; repeat it for several (OCTAVO_NAMESPACES: a list with commas)",
    )
    parser.add_argument("--all-namespaces", action="store_true", help="watch all namespaces (default)")
    option("image", "", "image of head, gateways and engines if a ServingDeployment sets none; required")
    option("workers", "4", "number of concurrent reconciles (4)")
    option("log-level", "info", f"log level: {', '.join(_LEVELS)} (info)")
    option(
        "log-format",
        "text" if sys.stderr.isatty() else "json",
        "log format: json or text (text on a terminal, else json)",
    )
    option("bind-address", "", "IP address of both ports; use 127.0.0.1 outside a pod (all interfaces)")
    option("health-port", "8080", "port of /healthz and /readyz (8080)")
    option("metrics-port", "8081", "port of /metrics (8081)")
    option("resync-seconds", "600", "seconds between full resyncs of all deployments (600)")
    option("operator-namespace", "", "namespace of the operator's own pod, for NetworkPolicies")
    option("operator-labels", "", "labels of the operator's own pod, for NetworkPolicies: KEY=VALUE,KEY=VALUE")
    return parser


def _words(value: str) -> list[str]:
    return [word.strip() for word in value.split(",") if word.strip()]


def _required(name: str, value: str) -> str:
    if not value:
        raise ConfigurationError(f"{name}: missing; set it to an image with Octavo and Ray {RAY_VERSION}")
    return value


def _number(name: str, value: str, minimum: int, maximum: int) -> int:
    if not value.isdecimal() or not minimum <= int(value) <= maximum:
        raise ConfigurationError(f"{name}: got {value!r}, allowed: {minimum} to {maximum}")
    return int(value)


def _address(name: str, value: str) -> str:
    if value:
        try:
            ipaddress.ip_address(value)
        except ValueError:
            raise ConfigurationError(f"{name}: got {value!r}, allowed: an IP address of this machine") from None
    return value


def _one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise ConfigurationError(f"{name}: got {value!r}, allowed: {', '.join(allowed)}")
    return value


def _labels(value: str) -> dict[str, str]:
    pairs = [word.partition("=") for word in _words(value)]
    if wrong := [key for key, sign, _ in pairs if not sign or not key]:
        raise ConfigurationError(f"--operator-labels: got {wrong[0]!r}, allowed: KEY=VALUE")
    return {key: label for key, _, label in pairs}
