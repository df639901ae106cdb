"""Renders the reference pages in ``docs/reference`` from the definitions themselves.

``python -m octavo_api.reference [FOLDER]`` writes them; a test keeps them fresh.
"""

import inspect
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from octavo_api import errors
from octavo_api.deployment import ServingDeployment, Spec, parse_cpus
from octavo_api.settings import Change, parse_bytes

FOLDER = Path("docs/reference")
_SCHEMA_URL = "https://json-schema.org/draft/2020-12/schema"

_CHANGES = {
    Change.LIVE: "is taken over by the running processes; no request notices",
    Change.ROLLING: "replaces replicas one after the other; running requests end on the old ones",
    Change.NEW_CLUSTER: "needs new pods: what is old is stopped, or drained, as `spec.rollout` says",
    Change.IMMUTABLE: "is refused; delete and create",
}


@dataclass(frozen=True, slots=True)
class _Leaf:
    """One field that holds a value. ``path`` leads to it from the section's top, in field names."""

    path: tuple[str, ...]
    aliases: tuple[str, ...]
    field: FieldInfo
    default: Any
    description: str
    extra: dict[str, Any]


def settings_page() -> str:
    """Returns every field of the resource, which are all settings of engine and router, as Markdown."""
    sections = list(_sections())
    used = {leaf.extra.get("x-octavo-change") for *_, leaves in sections for leaf in leaves}
    lines = [
        "# Settings",
        "",
        "Made from the code by `python -m octavo_api.reference`; do not edit.",
        "",
        "In a `ServingDeployment` a field stands under its path, in lowerCamelCase. On the command line the settings",
        "of engine and router are set by name: `--set engine.max_num_seqs=64`, `--set router.policy=least_load`.",
        "Either spelling is read. Bytes are a number or a quantity (`4Gi`, `500M`), CPUs likewise (`1500m`).",
        "",
        "What a change of a field does to a running deployment:",
        "",
        *(f"* **{change.value}**: the change {effect}." for change, effect in _CHANGES.items() if change in used),
    ]
    for title, intro, path, leaves in sections:
        lines += ["", f"## {title}", "", *([intro, ""] if intro else []), *_table(path, leaves)]
    return "\n".join(lines) + "\n"


def _sections() -> Iterator[tuple[str, str, str, list[_Leaf]]]:
    plain: list[_Leaf] = []
    for name, field in Spec.model_fields.items():
        leaves = list(_leaves(name, field))
        if _model(field) is None:
            plain += leaves
            continue
        alias = field.alias or name
        command = f"On the command line: `--set {name}.NAME=VALUE`." if name in ("engine", "router") else ""
        yield f"`spec.{alias}`", command, "spec", leaves
    yield "`spec`", "", "spec", plain


def _leaves(name: str, field: FieldInfo, above: _Leaf | None = None) -> Iterator[_Leaf]:
    """Yields the values under a field; one without a description or a change of its own has that of its section."""
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    default = getattr(above.default, name) if above and isinstance(above.default, BaseModel) else field.default
    leaf = _Leaf(
        path=(*(above.path if above else ()), name),
        aliases=(*(above.aliases if above else ()), field.alias or name),
        field=field,
        default=default,
        description=field.description or (above.description if above else ""),
        extra=dict(extra) or (above.extra if above else {}),
    )
    model = _model(field)
    if model is None:
        yield leaf
        return
    for inner, inner_field in model.model_fields.items():
        yield from _leaves(inner, inner_field, leaf)


def _model(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _table(path: str, leaves: Sequence[_Leaf]) -> list[str]:
    rows = [
        (
            f"`{'.'.join((path, *leaf.aliases))}`",
            f"`{leaf.path[-1]}`",
            _kind(leaf.field),
            _default(leaf),
            _allowed(leaf),
            str(leaf.extra.get("x-octavo-change", "")),
            leaf.description,
        )
        for leaf in leaves
    ]
    return _markdown(("Field", "Name", "Type", "Default", "Allowed", "A change is", "What it is"), rows)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _kind(field: FieldInfo) -> str:
    kinds = [kind for kind in get_args(field.annotation) if kind is not NoneType] or [field.annotation]
    kind = get_args(kinds[0])[0] if get_args(kinds[0]) else kinds[0]
    if _parsed_by(field, parse_bytes):
        return "bytes"
    if _parsed_by(field, parse_cpus):
        return "CPUs"
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return "one of"
    return {int: "integer", float: "number", bool: "boolean", str: "string"}[kind]


def _parsed_by(field: FieldInfo, parser: Any) -> bool:
    metadata = [*field.metadata, *(item for kind in get_args(field.annotation) for item in get_args(kind)[1:])]
    return any(getattr(item, "func", None) is parser for item in metadata)


def _default(leaf: _Leaf) -> str:
    if leaf.field.is_required() and leaf.default is leaf.field.default:
        return "required"
    if leaf.default is None:
        return str(leaf.extra.get("x-octavo-auto", "none"))
    auto = f", which is {leaf.extra['x-octavo-auto']}" if "x-octavo-auto" in leaf.extra else ""
    return f"`{_spelled(leaf.default)}`{auto}"


def _spelled(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _allowed(leaf: _Leaf) -> str:
    choices = [kind for kind in (leaf.field.annotation, *get_args(leaf.field.annotation)) if isinstance(kind, type)]
    for kind in choices:
        if issubclass(kind, StrEnum):
            return ", ".join(f"`{member.value}`" for member in kind)
    unit = str(leaf.extra.get("x-octavo-unit", ""))
    words = []
    for limit in leaf.field.metadata:
        match limit:
            case annotated_types.Ge(ge=bound):
                words.append(f"from {bound}")
            case annotated_types.Gt(gt=bound):
                words.append(f"over {bound}")
            case annotated_types.Le(le=bound):
                words.append(f"to {bound}")
            case annotated_types.MaxLen(max_length=bound):
                words.append(f"at most {bound} characters")
    return " ".join([*words, unit]).strip()


def errors_page() -> str:
    """Returns every error that a request or a command can end with, as Markdown."""
    requests = [
        (
            f"`{kind.__name__}`",
            str(kind.http_status),
            f"`{kind.grpc_code.name}`",
            f"`{kind.type}`",
            f"`{kind.code}`" if kind.code else "null",
            _when(kind),
        )
        for kind in _subclasses(errors.RequestError)
    ]
    startup = [(f"`{kind.__name__}`", _when(kind)) for kind in _subclasses(errors.StartupError)]
    lines = [
        "# Errors",
        "",
        "Made from the code by `python -m octavo_api.reference`; do not edit.",
        "",
        "## Of a request",
        "",
        "HTTP answers carry OpenAI's object:",
        "",
        "```json",
        json.dumps(errors.InvalidRequest.field("temperature", 7, "a number from 0 to 2").openai(), indent=2),
        "```",
        "",
        "A message names the field, the value that was given, and what is allowed. gRPC answers carry the same message",
        "with the code below. `Retry-After` is sent where it is known when to come back.",
        "",
        *_markdown(("Error", "HTTP", "gRPC", "`type`", "`code`", "When"), requests),
        "",
        "## Of a command",
        "",
        "These end a command with a non-zero exit status before anything is served; the message says what to change.",
        "",
        *_markdown(("Error", "When"), startup),
    ]
    return "\n".join(lines) + "\n"


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    """Yields all subclasses in the order of their definition, each before its own."""
    for sub in kind.__subclasses__():
        if sub.__module__ == errors.__name__:
            yield sub
            yield from _subclasses(sub)


def _when(kind: type[Any]) -> str:
    return " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].replace("``", "`").split())


def schema() -> str:
    """Returns the JSON schema of a ``ServingDeployment`` document, for editors."""
    document = ServingDeployment.model_json_schema()
    for model in _models(ServingDeployment):
        section = document["$defs"].get(model.__name__, document)
        for name, field in model.model_fields.items():
            _limit(section["properties"][field.alias or name], field)
    document = {"$schema": _SCHEMA_URL, **document}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        if (inner := _model(field)) is not None:
            yield from _models(inner)


def _limit(schema: dict[str, Any], field: FieldInfo) -> None:
    """Writes limits of quantities, which pydantic cannot: they hold for the number, not for the string."""
    schema.pop("ge", None)
    schema.pop("gt", None)
    for branch in schema.get("anyOf", ()):
        _limit(branch, field)
    if schema.get("type") in ("integer", "number"):
        for limit in field.metadata:
            if isinstance(limit, annotated_types.Ge):
                schema["minimum"] = limit.ge
            elif isinstance(limit, annotated_types.Gt):
                schema["exclusiveMinimum"] = limit.gt


PAGES = {
    "settings.md": settings_page,
    "errors.md": errors_page,
    "servingdeployment.schema.json": schema,
}


def main(folder: Path = FOLDER) -> None:
    """Writes all pages into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, render in PAGES.items():
        (folder / name).write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
