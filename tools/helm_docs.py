"""Makes the table of values in the chart's README of the ``# --`` comments in values.yaml.

python tools/helm_docs.py          writes helm/octavo/README.md
python tools/helm_docs.py --check  fails where it is stale, or a value has no comment
"""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

CHART = Path(__file__).resolve().parent.parent / "helm" / "octavo"
BEGIN, END = "<!-- values: made by tools/helm_docs.py -->\n", "<!-- end of values -->\n"

_LINE = re.compile(r"^( *)([A-Za-z][A-Za-z0-9_]*):(.*)$")


@dataclass(frozen=True, slots=True)
class Value:
    path: str
    text: str


def described(text: str) -> Iterator[Value]:
    """Yields each key that a ``# --`` comment stands above, with its path."""
    parents: list[str] = []
    comment = ""
    for line in text.splitlines():
        bare = line.strip()
        if bare.startswith("# -- "):
            comment = bare.removeprefix("# -- ")
        elif bare.startswith("#") and comment:
            comment += " " + bare.removeprefix("#").strip()
        elif match := _LINE.match(line):
            depth = len(match[1]) // 2
            parents[depth:] = [match[2]]
            if comment:
                yield Value(".".join(parents), comment)
            comment = ""
        else:
            comment = ""


def leaves(values: object, path: str = "") -> Iterator[str]:
    """Yields the path of each value that is set: mappings are entered, lists and empty mappings are values."""
    if isinstance(values, dict) and values:
        for name, value in values.items():
            yield from leaves(value, f"{path}.{name}" if path else name)
    else:
        yield path


def undescribed(text: str) -> list[str]:
    """Returns the values for which neither they nor a mapping around them has a comment."""
    paths = {value.path for value in described(text)}
    return [
        leaf
        for leaf in leaves(yaml.safe_load(text))
        if not any(leaf == path or leaf.startswith(f"{path}.") for path in paths)
    ]


def table(text: str) -> str:
    values = yaml.safe_load(text)
    rows = ["| value | default | |", "|---|---|---|"]
    for value in described(text):
        default = values
        for name in value.path.split("."):
            default = default[name]
        shown = json.dumps(default).replace("|", "\\|")
        rows.append(f"| `{value.path}` | `{shown}` | {value.text.replace('|', chr(92) + '|')} |")
    return "\n".join(rows) + "\n"


def readme(chart: Path = CHART) -> str:
    """Returns the README with a fresh table."""
    text = (chart / "README.md").read_text()
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{chart / 'README.md'}: no place for the table between {BEGIN.strip()} and {END.strip()}")
    return before + BEGIN + table((chart / "values.yaml").read_text()) + END + after


def main() -> None:
    if missing := undescribed((CHART / "values.yaml").read_text()):
        raise SystemExit(f"helm/octavo/values.yaml: no `# -- ` comment above {', '.join(missing)}")
    target = CHART / "README.md"
    if "--check" in sys.argv[1:]:
        if target.read_text() != readme():
            raise SystemExit("helm/octavo/README.md is stale: run python tools/helm_docs.py")
    else:
        target.write_text(readme())


if __name__ == "__main__":
    main()
