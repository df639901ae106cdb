"""Typed access to a document of keys and values."""

from collections.abc import Mapping
from typing import Any

from octavo_api.errors import ModelError


class Fields:
    """The values of one document. Errors name the document, the field, the value and the allowed values."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._required(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise self.error(name, value, "a positive integer")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._required(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise self.error(name, value, "a positive number")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        value = self._required(name, default)
        if not isinstance(value, bool):
            raise self.error(name, value, "true, false")
        return value

    def error(self, name: str, value: object, allowed: str) -> ModelError:
        return ModelError(f"{self._where}: {name}: got {value!r}, allowed: {allowed}")

    def _required(self, name: str, default: Any) -> Any:
        value = self._values.get(name)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"{self._where}: {name}: required, not given")
        return value
