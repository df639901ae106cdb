"""Checks that a type cannot express, each in CEL for the API server and in Python for all other code.

A ``Rule`` checks one document. A ``Transition`` compares an update with the stored object. Only the API server has the
stored object, so a ``Transition`` exists in CEL only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import BaseModel, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True, slots=True)
class Rule:
    """Check of one value: ``cel`` reads ``self`` in the API server, ``holds`` gets the same value in Python.

    In ``Annotated[type, rule]`` it checks one field, and in the ``RULES`` of a section that section. Then ``at`` is the
    path of the wrong field below the section (``.rollout.strategy``).
    """

    message: str
    cel: str
    holds: Callable[[Any], bool]
    at: str = ""

    def check(self, value: Any) -> Any:
        """Return ``value``. Raise ``ValueError`` if the rule does not hold."""
        if not self.holds(value):
            raise ValueError(self.message)
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))


@dataclass(frozen=True, slots=True)
class Transition:
    """Check of an update. ``cel`` also reads ``oldSelf``, the stored value."""

    message: str
    cel: str
    at: str = ""


class Ruled(BaseModel):
    """A model with rules between its fields. ``RULES`` are checked here and in CEL, ``TRANSITIONS`` in CEL only."""

    RULES: ClassVar[tuple[Rule, ...]] = ()
    TRANSITIONS: ClassVar[tuple[Transition, ...]] = ()

    @model_validator(mode="after")
    def _rules(self) -> Self:
        if broken := [rule.message for rule in self.RULES if not rule.holds(self)]:
            raise ValueError("; ".join(broken))
        return self
