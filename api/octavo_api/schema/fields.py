"""Walk over the types of a document: every field with its path, its limits and the effect of a change.

The resource definition, the reference pages and the test that each field is consumed all use this walk.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from octavo_api.resource.sections import parse_cpus
from octavo_api.settings import parse_bytes


class Kind(StrEnum):
    """Kinds of values, in the words of the reference pages."""

    SECTION = "object"
    PASSTHROUGH = "Kubernetes object"
    MAP = "map"
    LIST = "list"
    BYTES = "bytes"
    CPUS = "CPUs"
    CHOICE = "one of"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    STRING = "string"


@dataclass(frozen=True, slots=True)
class Shape:
    """Parts of a type. ``metadata`` has its limits and validators."""

    kind: Kind
    metadata: tuple[Any, ...] = ()
    model: type[BaseModel] | None = None
    """Of a section."""
    item: "Shape | None" = None
    """Of a list's elements or a map's values."""
    choices: tuple[str, ...] = ()

    @property
    def section(self) -> type[BaseModel] | None:
        """The section of this field, or of each element if the field is a list."""
        return self.model or (self.item.model if self.item else None)


def shape(annotation: Any, metadata: tuple[Any, ...] = ()) -> Shape:
    """Return the shape of a field's type. Raise ``TypeError`` for a type that documents do not support."""
    metadata = tuple(limit for item in metadata for limit in (item.metadata if isinstance(item, FieldInfo) else [item]))
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return shape(arguments[0], (*arguments[1:], *metadata))
    if origin in (Union, UnionType):
        (some,) = (argument for argument in arguments if argument is not NoneType)
        return shape(some, metadata)
    if origin is Literal:
        return Shape(Kind.CHOICE, metadata, choices=arguments)
    if origin is list:
        return Shape(Kind.LIST, metadata, item=shape(arguments[0]))
    if origin is dict:
        return Shape(Kind.PASSTHROUGH, metadata) if arguments[1] is Any else _map(arguments[1], metadata)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return Shape(Kind.SECTION, metadata, model=annotation)
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return Shape(Kind.CHOICE, metadata, choices=tuple(member.value for member in annotation))
    parsers = {getattr(item, "func", None) for item in metadata}
    plain = {int: Kind.INTEGER, bool: Kind.BOOLEAN, str: Kind.STRING}
    if parse_bytes in parsers:
        return Shape(Kind.BYTES, metadata)
    if parse_cpus in parsers:
        return Shape(Kind.CPUS, metadata)
    if annotation not in plain:
        raise TypeError(f"documents have no type for {annotation!r}")
    return Shape(plain[annotation], metadata)


def _map(values: Any, metadata: tuple[Any, ...]) -> Shape:
    return Shape(Kind.MAP, metadata, item=shape(values))


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a document.

    ``path`` is its path from the top of the walk in the spelling of documents, with ``[]`` for each element of a list.
    ``name`` is the name in Python. A field inherits missing properties from the section above it.
    """

    path: tuple[str, ...]
    name: str
    info: FieldInfo
    shape: Shape
    description: str
    default: Any
    """``...`` if the field is required."""
    change: str
    unit: str
    auto: str
    """Description of the value that replaces a default of None."""

    @property
    def spelled(self) -> str:
        return ".".join(self.path).replace(".[]", "[]")


def walk(model: type[BaseModel], above: Field | None = None) -> Iterator[Field]:
    """Yield every field under ``model``, each section before its fields."""
    path = (*above.path, *(("[]",) if above.shape.kind is Kind.LIST else ())) if above else ()
    for name, info in model.model_fields.items():
        field = describe(name, info, path, above)
        yield field
        if field.shape.section is not None:
            yield from walk(field.shape.section, field)


def describe(name: str, info: FieldInfo, path: tuple[str, ...] = (), above: Field | None = None) -> Field:
    """Return one field with all properties from its definition and from the section above it."""
    extra: Mapping[str, Any] = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    taken = shape(info.annotation, tuple(info.metadata))
    from_above = above is not None and isinstance(above.default, BaseModel)
    inherited = getattr(above.default, name) if above and from_above else info.default
    unsaid = from_above and (inherited is None or isinstance(inherited, BaseModel))
    return Field(
        path=(*path, info.alias or name),
        name=name,
        info=info,
        shape=taken,
        description=info.description or (first_paragraph(taken.model) if taken.model else ""),
        default=... if info.is_required() and inherited is info.default else inherited,
        change=str(extra.get("x-octavo-change", above.change if above else "")),
        unit=str(extra.get("x-octavo-unit", "")),
        auto=str(extra.get("x-octavo-auto", above.auto if above and unsaid else "")),
    )


def first_paragraph(documented: type[Any]) -> str:
    """Return a class's docstring up to its first empty line, in Markdown."""
    return " ".join(inspect.cleandoc(documented.__doc__ or "").split("\n\n")[0].replace("``", "`").split())
