"""References of hand-written pages lead to existing things."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
READMES = sorted(page for page in ROOT.glob("*/**/README.md") if ".venv" not in page.parts)
FOLDERS = "api|text|kernels|replicas|router|operator|cli|testing|helm|manifests|docker|docs|e2e|tests|tools|benchmarks"
FIELDS = r"`spec\.([a-zA-Z.]+)`"


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, section = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), link
        if section:
            heads = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert section in {slug(head) for head in heads}, link


def slug(head: str) -> str:
    """Returns the name that GitHub gives a heading."""
    return re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-")


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_files_and_folders_that_are_named_exist(path: Path) -> None:
    named = re.findall(rf"[`(\s]((?:{FOLDERS})/[\w./-]*\w/?)[`)\s,;:]", path.read_text(encoding="utf-8"))
    assert [file for file in named if not (ROOT / file).exists()] == []


@pytest.mark.parametrize("path", READMES, ids=name)
def test_files_that_a_readme_names_exist(path: Path) -> None:
    """Only names in backticks with a folder and the ending ``.py`` count: other words may be code."""
    named = re.findall(r"`([\w./-]+/[\w-]+\.py)`", path.read_text(encoding="utf-8"))
    places = (*ROOT.glob("*"), ROOT, path.parent, *path.parent.glob("octavo_*"))
    assert [file for file in named if not any((place / file).exists() for place in places)] == []


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_make_targets_that_are_named_exist(path: Path) -> None:
    targets = re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"(?:^|[`$] ?)make ([a-z][a-z0-9-]*)(?=$|[`\s])", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(named) <= set(targets)


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_metrics_that_are_named_exist(path: Path) -> None:
    pages = [(ROOT / "docs" / "reference" / page).read_text() for page in ("metrics.md", "operator-metrics.md")]
    made = set(re.findall(r"^\| `(octavo_\w+)` \|", "\n".join(pages), re.MULTILINE))
    named = set(re.findall(r"`(octavo_\w+)(?:\{[^`]*\})?`", path.read_text(encoding="utf-8")))
    packages = {found.name for found in ROOT.glob("*/octavo_*")}
    resources = {"octavo_engine", "octavo_gateway"}
    assert named - made - packages - resources == set()


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_fields_that_are_named_exist(path: Path) -> None:
    schema = yaml.safe_load((ROOT / "manifests/base/crd/servingdeployments.yaml").read_text())
    (version,) = schema["spec"]["versions"]
    paths = set(spelled(version["schema"]["openAPIV3Schema"]["properties"]["spec"]))
    named = set(re.findall(FIELDS, path.read_text(encoding="utf-8")))
    assert named - paths == set()


def spelled(schema: dict[str, object], at: str = "") -> Iterator[str]:
    properties = schema.get("properties")
    for field, inner in properties.items() if isinstance(properties, dict) else ():
        path = f"{at}.{field}" if at else field
        yield path
        yield from spelled(inner, path)
