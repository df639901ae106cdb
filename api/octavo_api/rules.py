"""Checks that a type alone cannot say, each once in CEL for the API server and once in Python for everybody else.

A ``Rule`` judges one document. A ``Transition`` judges an update against what is stored, which only the API server
sees, so it is CEL alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import BaseModel, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True, slots=True)
class Rule:
    """``cel`` reads ``self`` as the API server has it, ``holds`` the same value as its type has it.

    In ``Annotated[type, rule]`` it judges one field, in a section's ``RULES`` the section; ``at`` then names the field
    to blame, from the section on (``.rollout.strategy``).
    """

    message: str
    cel: str
    holds: Callable[[Any], bool]
    at: str = ""

    def check(self, value: Any) -> Any:
        """Returns ``value``; raises ``ValueError`` where the rule does not hold."""
        if not self.holds(value):
            raise ValueError(self.message)
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))


@dataclass(frozen=True, slots=True)
class Transition:
    """``cel`` also reads ``oldSelf``, what is stored."""

    message: str
    cel: str
    at: str = ""


class Ruled(BaseModel):
    """A model with rules between its fields: ``RULES`` are checked here and in CEL, ``TRANSITIONS`` in CEL alone."""

    RULES: ClassVar[tuple[Rule, ...]] = ()
    TRANSITIONS: ClassVar[tuple[Transition, ...]] = ()

    @model_validator(mode="after")
    def _rules(self) -> Self:
        if broken := [rule.message for rule in self.RULES if not rule.holds(self)]:
            raise ValueError("; ".join(broken))
        return self
