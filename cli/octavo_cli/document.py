"""Conversion of the command line of ``octavo up`` to a ``ServingDeployment``."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pydantic.alias_generators import to_camel

from octavo_api.errors import ConfigurationError
from octavo_api.resource.deployment import ServingDeployment
from octavo_api.startup.command_line import read_assignments
from octavo_api.startup.model_source import EMBEDDED, normalize_uri

_SECTIONS = ("engine", "router")
_ALLOWED = "engine.NAME=VALUE or router.NAME=VALUE"
_WORD = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Flags:
    """Values from the command line. A flag that was not given is None or empty."""

    model: str | None = None
    file: Path | None = None
    replicas: int | None = None
    http_port: int | None = None
    grpc_port: int | None = None
    served_name: str | None = None
    settings: Sequence[str] = ()


def read_deployment(flags: Flags) -> ServingDeployment:
    """Return the deployment of file and flags. Flags have precedence over the file.

    Raise ``ConfigurationError`` that names the flag or the field.
    """
    document = _from_file(flags.file) if flags.file else _from_model(flags.model)
    spec = document["spec"]
    if flags.file and flags.model:
        spec["model"] = {"uri": normalize_uri(flags.model)}
    if flags.replicas is not None:
        spec["replicas"] = flags.replicas
    if flags.served_name is not None:
        spec.setdefault("model", {})["servedName"] = flags.served_name
    for protocol, port in (("http", flags.http_port), ("grpc", flags.grpc_port)):
        if port is not None:
            spec.setdefault("endpoint", {})[protocol] = {"port": port}
    typed: dict[tuple[int | str, ...], str] = {}
    for setting in flags.settings:
        section, name, value = parse_setting(setting)
        spec.setdefault(section, {})[to_camel(name)] = value
        typed["spec", section, to_camel(name)] = f"--set {section}.{name}"
    return ServingDeployment.read(document, where=str(flags.file or "octavo up"), typed=typed)


def parse_setting(text: str) -> tuple[str, str, Any]:
    """Split ``engine.max_num_seqs=64`` into section, name and value. The value is read as YAML."""
    ((path, value),) = read_assignments([text], allowed=_ALLOWED).items()
    section, dot, name = path.partition(".")
    if not dot or not name or section not in _SECTIONS:
        raise ConfigurationError(f"--set: got {text!r}, allowed: {_ALLOWED}")
    return section, name, value


def _from_file(path: Path) -> dict[str, Any]:
    deployment = ServingDeployment.load(path)
    return deployment.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _from_model(model: str | None) -> dict[str, Any]:
    uri = normalize_uri(model or "")
    served_name = _served_name(uri)
    return {
        "metadata": {"name": _object_name(served_name)},
        "spec": {"model": {"uri": uri, "servedName": served_name}},
    }


def _served_name(uri: str) -> str:
    if uri == EMBEDDED:
        return "smollm2"
    return unquote(uri.rstrip("/").rpartition("/")[2]).removesuffix(".gguf") or "model"


def _object_name(served_name: str) -> str:
    """Return a Kubernetes name: lower case letters, digits and hyphens, with a letter first."""
    words = _WORD.sub("-", served_name.lower()).strip("-")
    return (words if words[:1].isalpha() else f"model-{words}")[:40].strip("-")
