"""Generator of the reference pages in ``docs/reference``.

``python -m octavo_api.schema.reference [FOLDER]`` writes them. A test checks that they are up to date.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import annotated_types
from pydantic import BaseModel

from octavo_api import errors
from octavo_api.resource.deployment import API_VERSION, KIND, Metadata, ServingDeployment, Spec
from octavo_api.resource.status import Status
from octavo_api.rules import Rule, Ruled
from octavo_api.schema import crd
from octavo_api.schema.fields import Field, Kind, Shape, first_paragraph, walk
from octavo_api.settings import Change, EngineSettings, RouterSettings

FOLDER = Path("docs/reference")
_SCHEMA_URL = "https://json-schema.org/draft/2020-12/schema"

_CHANGES = {
    Change.LIVE: "is applied by the running processes and affects no running request",
    Change.ROLLING: "replaces replicas one after the other; running requests end on the old ones",
    Change.NEW_CLUSTER: "needs new pods; `spec.rollout` decides if the old pods stop first or drain",
    Change.IMMUTABLE: "is rejected; delete and create the resource",
}
_MADE = "Generated from the code by `python -m octavo_api.schema.reference`; do not edit."


def settings_page() -> str:
    """Return the settings of engine and router as the command line knows them, in Markdown."""
    lines = [
        "# Settings",
        "",
        _MADE,
        "",
        "Settings of engine and router are set by name on the command line: `--set engine.max_num_seqs=64`,",
        "`--set router.policy=least_load`. In a `ServingDeployment` the same field is in `spec.engine` or",
        "`spec.router`, in lowerCamelCase. `octavo up -f` reads both spellings, the API server only lowerCamelCase.",
        "Bytes are a number or a quantity (`4Gi`, `500M`).",
        "[servingdeployment.md](servingdeployment.md) has all other fields of the resource.",
        "",
        *_legend([*walk(EngineSettings), *walk(RouterSettings)]),
    ]
    for name, model in (("engine", EngineSettings), ("router", RouterSettings)):
        head = ("Name", "Field", "Type", "Default", "Allowed", "Change", "Description")
        rows = [
            (f"`{name}.{field.name}`", f"`spec.{name}.{field.spelled}`", *_what(field), field.description)
            for field in walk(model)
        ]
        lines += ["", f"## {name.capitalize()}", "", *_markdown(head, rows)]
    return "\n".join(lines) + "\n"


def resource_page() -> str:
    """Return every field of the resource, its rules and its status, in Markdown."""
    lines = [
        "# ServingDeployment",
        "",
        _MADE,
        "",
        f"{first_paragraph(ServingDeployment)} Short name `sdep`. The smallest document:",
        "",
        "```yaml",
        f"apiVersion: {API_VERSION}",
        f"kind: {KIND}",
        "metadata: {name: chat}",
        "spec:",
        "  model: {uri: embedded://smollm2}",
        "```",
        "",
        "The name has at most 40 characters: lower case letters, digits and `-`, a letter first. Bytes are a number or",
        'a quantity (`4Gi`, `500M`), CPUs a whole number or a quantity (`1500m`, `"1.5"`). `kubectl explain sdep.spec`',
        "prints the same. Editors use [servingdeployment.schema.json](servingdeployment.schema.json).",
        "",
        *_legend(list(walk(Spec))),
    ]
    head = ("Field", "Type", "Default", "Allowed", "Change", "Description")
    for title, fields in _sections():
        rows = [(f"`spec.{field.spelled}`", *_what(field), field.description) for field in fields]
        lines += ["", f"## {title}", "", *_markdown(head, rows)]
    lines += [
        "",
        "## Rules",
        "",
        "The API server and `octavo up -f` reject a resource that breaks one of these rules:",
        "",
        *_rules("RULES"),
    ]
    lines += ["", "The API server rejects a change that breaks one of these rules:", "", *_rules("TRANSITIONS")]
    status = [
        (f"`status.{field.spelled}`", field.shape.kind.value, field.description)
        for field in walk(Status)
        if field.shape.kind is not Kind.SECTION
    ]
    lines += ["", "## `status`", "", first_paragraph(Status), "", *_markdown(("Field", "Type", "Description"), status)]
    return "\n".join(lines) + "\n"


def _sections() -> Iterator[tuple[str, list[Field]]]:
    """Yield the fields of ``spec``, then those of each section. A section with its own effect of a change is a row."""
    tops: dict[str, list[Field]] = {"": []}
    nested = {field.path[0] for field in walk(Spec) if len(field.path) > 1}
    for field in walk(Spec):
        if field.shape.kind is not Kind.SECTION or field.change:
            tops.setdefault(field.path[0] if field.path[0] in nested else "", []).append(field)
    for top, fields in tops.items():
        yield (f"`spec.{top}`" if top else "`spec`"), fields


def _rules(kind: str) -> list[str]:
    """Return a list of all rules or transitions, each under the path of its section."""
    models = [("spec", Spec), *((f"spec.{field.spelled}", field.shape.section) for field in walk(Spec))]
    found = [
        (path, rule.message)
        for path, model in models
        if model is not None and issubclass(model, Ruled)
        for rule in getattr(model, kind)
    ]
    for field in walk(Spec):
        on_field = [item.message for item in field.shape.metadata if isinstance(item, Rule)] if kind == "RULES" else []
        if kind == "TRANSITIONS" and crd.is_immutable(field):
            on_field.append("cannot be changed")
        found += [(f"spec.{field.spelled}", message) for message in on_field]
    return [f"* `{path}`: {message}." for path, message in found]


def _legend(fields: Sequence[Field]) -> list[str]:
    used = {field.change for field in fields}
    return [
        "Effect of a change on a running deployment:",
        "",
        *(f"* **{change.value}**: the change {effect}." for change, effect in _CHANGES.items() if change in used),
    ]


def _what(field: Field) -> tuple[str, str, str, str]:
    """Return type, default, allowed values and effect of a change of a field."""
    return _kind(field.shape), _default(field), _allowed(field), field.change


def _kind(shape: Shape) -> str:
    if shape.item is None:
        return shape.kind.value
    return f"{shape.kind.value} of {shape.item.kind.value}s"


def _default(field: Field) -> str:
    if field.default is ...:
        return "required"
    text = crd.default_text(field)
    if isinstance(field.default, BaseModel):
        return text
    if field.default is None or field.default in ([], {}):
        return text or "none"
    value, comma, auto = text.partition(",")
    return f"`{value}`{comma}{auto}"


def _allowed(field: Field) -> str:
    words = [", ".join(f"`{choice}`" for choice in field.shape.choices)]
    counted = {Kind.STRING: "characters", Kind.LIST: "items", Kind.MAP: "entries", Kind.PASSTHROUGH: "fields"}
    for limit in field.shape.metadata:
        match limit:
            case annotated_types.Ge(ge=bound):
                words.append(f"from {bound}")
            case annotated_types.Gt(gt=bound):
                words.append(f"above {bound}")
            case annotated_types.Le(le=bound):
                words.append(f"to {bound}")
            case annotated_types.MultipleOf(multiple_of=step):
                words.append(f"in steps of {step}")
            case annotated_types.MaxLen(max_length=bound):
                words.append(f"at most {bound} {counted[field.shape.kind]}")
    return " ".join([*words, field.unit]).strip()


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def errors_page() -> str:
    """Return every error that a request or a command can end with, as Markdown."""
    requests = [
        (
            f"`{kind.__name__}`",
            str(kind.http_status),
            f"`{kind.grpc_code.name}`",
            f"`{kind.type}`",
            f"`{kind.code}`" if kind.code else "null",
            first_paragraph(kind),
        )
        for kind in _subclasses(errors.RequestError)
    ]
    startup = [(f"`{kind.__name__}`", first_paragraph(kind)) for kind in _subclasses(errors.StartupError)]
    lines = [
        "# Errors",
        "",
        "Generated from the code by `python -m octavo_api.schema.reference`; do not edit.",
        "",
        "## Errors of a request",
        "",
        "HTTP answers contain OpenAI's error object:",
        "",
        "```json",
        json.dumps(errors.InvalidRequest.field("temperature", 7, "a number from 0 to 2").openai(), indent=2),
        "```",
        "",
        "A message names the field, the given value and the allowed values. gRPC answers have the same message with",
        "the code below. `Retry-After` is sent if the time of a retry is known.",
        "",
        *_markdown(("Error", "HTTP", "gRPC", "`type`", "`code`", "When"), requests),
        "",
        "## Errors of a command",
        "",
        "These errors end a command with a non-zero exit status before it serves. The message names the remedy.",
        "",
        *_markdown(("Error", "When"), startup),
    ]
    return "\n".join(lines) + "\n"


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    """Yield all subclasses in the order of their definition, each before its own."""
    for sub in kind.__subclasses__():
        if sub.__module__ == errors.__name__:
            yield sub
            yield from _subclasses(sub)


def schema() -> str:
    """Return the JSON schema of a ``ServingDeployment`` document, for editors."""
    document = plain(crd.schema())
    name = Metadata.model_json_schema()["properties"]["name"]
    document["properties"] |= {
        "apiVersion": {"const": API_VERSION},
        "kind": {"const": KIND},
        "metadata": {"type": "object", "required": ["name"], "properties": {"name": name}},
        "status": {"type": "object"},
    }
    document["required"] = ["apiVersion", "kind", "metadata", "spec"]
    return json.dumps({"$schema": _SCHEMA_URL, **document}, indent=2, ensure_ascii=False) + "\n"


def plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Convert Kubernetes' schema to one that any validator supports. CEL rules are omitted."""
    made = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes")}
    if schema.get("format") == "int64":
        # The format is a limit in Kubernetes only, whose own schema cannot contain this number.
        made.setdefault("maximum", 2**63 - 1)
    if schema.get("x-kubernetes-int-or-string"):
        number = {"type": "integer"} | {key: made.pop(key) for key in ("minimum", "maximum") if key in made}
        made["anyOf"] = [number, {"type": "string", "pattern": made.pop("pattern"), "maxLength": made.pop("maxLength")}]
    if "properties" in made:
        made["properties"] = {name: plain(inner) for name, inner in made["properties"].items()}
        made["additionalProperties"] = False
    for inner in ("items", "additionalProperties"):
        if isinstance(made.get(inner), dict):
            made[inner] = plain(made[inner])
    return made


PAGES = {
    "settings.md": settings_page,
    "servingdeployment.md": resource_page,
    "errors.md": errors_page,
    "servingdeployment.schema.json": schema,
}


def main(folder: Path = FOLDER) -> None:
    """Write all pages into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, render in PAGES.items():
        (folder / name).write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="default: %(default)s")
    main(parser.parse_args().folder)
