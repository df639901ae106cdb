"""Tables that are made of the operator's code are what it says, and leave nothing out."""

import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import pytest

from octavo_operator import reference
from octavo_operator.kube import errors as kube_errors
from octavo_operator.model.conditions import Reason, Type
from octavo_operator.model.event_reasons import EventReason
from octavo_operator.serve import errors as serve_errors

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "operator" / "octavo_operator"
TROUBLESHOOTING = (ROOT / reference.FOLDER / reference.TROUBLESHOOTING).read_text(encoding="utf-8")
NOT_TOLD = {kube_errors.Conflict, kube_errors.NamespaceTerminating}
"""A look that meets these is made again with what is so by then; nobody needs to know."""


def test_the_tables_of_troubleshooting_are_fresh() -> None:
    assert reference.with_tables(TROUBLESHOOTING) == TROUBLESHOOTING, "run python -m octavo_operator.reference"


def test_the_page_of_the_operators_metrics_is_fresh() -> None:
    page = (ROOT / reference.FOLDER / reference.METRICS).read_text(encoding="utf-8")
    assert page == reference.metrics_page(), "run python -m octavo_operator.reference"


def test_pages_are_written_where_one_says(tmp_path: Path) -> None:
    (tmp_path / "reference").mkdir()
    places = "".join(
        f"<!-- {name}: {reference.GENERATED} -->\nstale\n<!-- end of {name} -->\n" for name in reference.TABLES
    )
    (tmp_path / reference.TROUBLESHOOTING).write_text(f"before\n{places}after\n")
    reference.main(tmp_path)
    written = (tmp_path / reference.TROUBLESHOOTING).read_text()
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    assert "\nstale\n" not in written
    assert "| `octavo_operator_queue_depth` | gauge |" in (tmp_path / reference.METRICS).read_text()


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for a table between"):
        reference.with_tables("# Troubleshooting\n")


@pytest.mark.parametrize("enumeration", [Type, Reason, EventReason], ids=lambda e: str(e.__name__))
def test_every_member_has_a_row_with_a_text(enumeration: type[StrEnum]) -> None:
    assert [entry.value for entry in reference.entries(enumeration)] == [member.value for member in enumeration]
    for entry in reference.entries(enumeration):
        assert re.search(
            rf"^\| `{entry.value}` \|(?: yes \|)?(?:  \|)? {re.escape(entry.text)} \|$", TROUBLESHOOTING, re.M
        )


class Silent(StrEnum):
    SAID = "Said"
    """Something."""
    UNSAID = "Unsaid"


def test_a_member_that_nothing_is_said_of_is_refused() -> None:
    with pytest.raises(ValueError, match="this member has no text"):
        list(reference.entries(Silent))


def test_every_event_is_in_the_table_with_its_type() -> None:
    found: dict[str, set[str]] = {}
    for path in SOURCES.rglob("*.py"):
        for kind, reason in re.findall(r"\bEvent\(\s*([^,()]+),\s*([\w.()]+),", path.read_text(), re.DOTALL):
            found.setdefault(reason, set()).add(kind.strip('"').upper())
    assert found.pop("str(reason)") == {"WARNING"}, "conditions that are told"
    assert found.pop("failure.reason") == {"WARNING"}, "steps that failed"
    failed = {kind.reason for kind in failures()}
    groups = {entry.value: entry.group for entry in reference.entries(EventReason)}
    assert set(found) == {f"EventReason.{r.name}" for r in EventReason if r not in failed} | {
        "EventReason.RAY_UNREACHABLE"
    }
    for reason, kinds in found.items():
        (kind,) = kinds
        assert groups[EventReason[reason.removeprefix("EventReason.")].value].upper().startswith(f"TYPE {kind}")


def test_every_step_that_fails_has_a_row() -> None:
    of_steps = {entry.value for entry in reference.entries(EventReason) if entry.group.endswith("that failed")}
    assert {kind.reason for kind in failures()} == of_steps


def failures() -> Iterator[type[kube_errors.KubeError] | type[serve_errors.ServeError]]:
    """Yields the errors that a step can end with and that are told."""
    waiting: list[type] = [*kube_errors.KubeError.__subclasses__(), *serve_errors.ServeError.__subclasses__()]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__.startswith("octavo_operator.") and kind not in NOT_TOLD:
            yield kind
