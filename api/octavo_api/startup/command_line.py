"""Options that the commands of engine, gateway and ``octavo up`` share."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from octavo_api.errors import ConfigurationError


def read_assignments(texts: Iterable[str], *, allowed: str = "KEY=VALUE") -> dict[str, Any]:
    """Read the arguments of ``--set``. Values are YAML. Raise ``ConfigurationError``."""
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigurationError(f"--set: got {text!r}, allowed: {allowed}")
        try:
            values[name.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigurationError(f"--set {name.strip()}: got {value!r}, allowed: a YAML value") from None
    return values


def read_secret(path: Path, *, where: str = "--secret-file") -> str:
    """Read a file that contains one secret. Raise ``ConfigurationError``, also if the file is empty."""
    try:
        secret = path.read_text().strip()
    except OSError as error:
        raise ConfigurationError(f"{where}: {path}: {str(error.strerror).lower()}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{where}: {path}: got binary data, allowed: text") from None
    if not secret:
        raise ConfigurationError(f"{where}: {path}: got an empty file, allowed: one secret")
    return secret
