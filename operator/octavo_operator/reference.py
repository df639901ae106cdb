"""Generator of tables in docs/troubleshooting.md and of docs/reference/operator-metrics.md, from the operator's code.

``python -m octavo_operator.reference [FOLDER]`` writes them below ``docs``; a test keeps them fresh.
"""

import argparse
import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from octavo_operator.decide.event_texts import WARNED
from octavo_operator.metrics import Metrics
from octavo_operator.model.conditions import Reason, Type
from octavo_operator.model.event_reasons import EventReason
from octavo_operator.model.observed import Key, Observed, Reach, Serve

FOLDER = Path("docs")
TROUBLESHOOTING = Path("troubleshooting.md")
METRICS = Path("reference/operator-metrics.md")

MADE = "made by python -m octavo_operator.reference"
_GROUP = re.compile(r"    # (?P<words>.+)")
_OF_PYTHON = frozenset({"le"})
"""Labels that a client library adds."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A member of an enumeration: its value, the text under it, and the comment above its group."""

    value: str
    text: str
    group: str


def entries(enumeration: type[StrEnum]) -> Iterator[Entry]:
    """Read the text below each member in the source, in order; raise ``ValueError`` if a member has none."""
    source = inspect.getsource(enumeration)
    comments = {number: found["words"] for number, line in _numbered(source) if (found := _GROUP.fullmatch(line))}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    members = [node for node in definition.body if isinstance(node, ast.Assign)]
    for node in members:
        following = definition.body[definition.body.index(node) + 1 :][:1]
        match node.targets, following:
            case [ast.Name(id=name)], [ast.Expr(value=ast.Constant(value=str(text)))]:
                above = [words for number, words in comments.items() if number < node.lineno]
                yield Entry(enumeration[name].value, " ".join(text.split()), above[-1] if above else "")
            case _:
                raise ValueError(f"{enumeration.__name__}, line {node.lineno}: says nothing of this member")


def condition_types() -> str:
    return _table(("Condition", "What it says"), [(f"`{entry.value}`", entry.text) for entry in entries(Type)])


def condition_reasons() -> str:
    told = {str(reason) for reasons in WARNED.values() for reason in reasons}
    rows = {
        group: [(f"`{entry.value}`", "yes" if entry.value in told else "", entry.text) for entry in found]
        for group, found in _grouped(Reason)
    }
    return _tables(("Reason", "Event", "What it means, and what to do"), rows)


def event_reasons() -> str:
    rows = {group: [(f"`{entry.value}`", entry.text) for entry in found] for group, found in _grouped(EventReason)}
    return _tables(("Event", "What it means, and what to do"), rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "conditions": condition_types,
    "reasons": condition_reasons,
    "events": event_reasons,
}
"""Functions that render the text between ``<!-- NAME: … -->`` and ``<!-- end of NAME -->``."""


def with_tables(page: str) -> str:
    """Return ``page`` with fresh tables; raise ``ValueError`` if it has no place for one."""
    for name, render in TABLES.items():
        begin, end = f"<!-- {name}: {MADE} -->\n", f"<!-- end of {name} -->\n"
        before, found, rest = page.partition(begin)
        _, ended, after = rest.partition(end)
        if not (found and ended):
            raise ValueError(f"{TROUBLESHOOTING}: no place for a table between {begin.strip()} and {end.strip()}")
        page = f"{before}{begin}\n{render()}\n{end}{after}"
    return page


def metrics_page() -> str:
    """Return every metric of the operator, in Markdown."""
    metrics = Metrics()
    _use(metrics)
    rows = []
    for family in metrics.registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = dict.fromkeys(label for sample in family.samples for label in sample.labels if label not in _OF_PYTHON)
        said = ", ".join(f"`{label}`" for label in labels)
        rows.append((f"`{name}`", family.type, said, family.documentation))
    introduction = textwrap.dedent("""\
        # Metrics of the operator

        Made from the code by `python -m octavo_operator.reference`; do not edit. [metrics.md](metrics.md) has the
        metrics of gateways and engines.

        They are at `/metrics` on port 8081 of the operator's pod. `resource_namespace` and `name` are a
        ServingDeployment's. A result of a reconcile that is not `ok` or `gone` is the reason of a failed step in
        [troubleshooting.md](../troubleshooting.md#events), or `Conflict`: another client changed the resource at the
        same time, and the operator reconciles it again.
        """)
    return f"{introduction}\n{_table(('Name', 'Type', 'Labels', 'What it is'), sorted(rows))}"


def _use(metrics: Metrics) -> None:
    """Give every series a value: a series without one has no labels."""
    key = Key("default", "example")
    metrics.reconciled("ok", 0.1)
    metrics.observed(Observed(serve={"": Serve(address="", reach=Reach.UNREACHABLE)}))
    metrics.status(key, {"conditions": [{"type": "Ready", "status": "True", "reason": "Serving"}]})
    metrics.watch_age.labels("servingdeployments").set(0)


def _grouped(enumeration: type[StrEnum]) -> Iterator[tuple[str, list[Entry]]]:
    found = list(entries(enumeration))
    for group in dict.fromkeys(entry.group for entry in found):
        yield group, [entry for entry in found if entry.group == group]


def _tables(head: Sequence[str], rows: Mapping[str, Sequence[Sequence[str]]]) -> str:
    return "\n".join(f"### {group}\n\n{_table(head, found)}" for group, found in rows.items())


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    return enumerate(text.splitlines(), start=1)


def main(folder: Path = FOLDER) -> None:
    """Writes the tables into the pages below ``folder``."""
    page = folder / TROUBLESHOOTING
    page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
    (folder / METRICS).write_text(metrics_page(), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help="default: %(default)s")
    main(parser.parse_args().folder)
