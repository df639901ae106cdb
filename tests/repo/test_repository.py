"""Rules of the repository that no other tool checks."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE_ROOTS = ("api", "text", "kernels", "replicas", "router", "operator", "cli", "testing")
MAX_LINES = 500
MAX_NAME = 70
MAX_CONFTEST = 80
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:home|root|Users|work)/(?!ray\b)\w")
"""``/home/ray`` is in the images, as in Ray's own."""
REGISTRY_HOSTS = re.compile(r"https?://[\w.-]*(?:artifactory|nexus|/simple/|pypi\.org/simple|index-url)", re.IGNORECASE)


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def modules() -> list[Path]:
    found = [path for root in SOURCE_ROOTS for path in (ROOT / root).rglob("*.py")]
    return [path for path in found if not GENERATED.search(path.name)]


def texts() -> list[tuple[Path, str]]:
    result = []
    for path in tracked():
        try:
            result.append((path, path.read_text()))
        except UnicodeDecodeError:
            continue
    return result


@pytest.mark.parametrize("root", [*SOURCE_ROOTS, "tests"])
def test_a_source_root_is_no_package(root: str) -> None:
    assert not (ROOT / root / "__init__.py").exists()


def test_operator_is_the_standard_librarys_from_the_root_of_the_repository() -> None:
    script = "import operator; print(operator.__file__)"
    found = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).parent != ROOT / "operator"
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_no_file_names_a_place_on_one_machine() -> None:
    ours = Path(__file__)
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path, text in texts()
        if path != ours
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_PATHS.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_file_names_a_package_index() -> None:
    ours = Path(__file__)
    wrong = [str(path.relative_to(ROOT)) for path, text in texts() if path != ours and REGISTRY_HOSTS.search(text)]
    assert not wrong


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_of_readable_size(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


def test_names_of_tests_are_short() -> None:
    found = [
        name
        for root in ("tests", "testing", "e2e")
        for path in (ROOT / root).rglob("*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text())
        if len(name) > MAX_NAME
    ]
    assert found == []


def test_conftest_holds_fixtures_and_little_else() -> None:
    sizes = {
        str(path.relative_to(ROOT).parent): len(path.read_text().splitlines())
        for root in ("tests", "e2e")
        for path in (ROOT / root).rglob("conftest.py")
    }
    assert {folder: size for folder, size in sizes.items() if size > MAX_CONFTEST} == {}


def test_every_make_target_is_documented() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, re.MULTILINE))
    documented = set(re.findall(r"^([a-z][a-z0-9-]*):.*## \w", makefile, re.MULTILINE))
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    assert targets == documented == set(phony[1].split())


def test_the_lock_has_every_direct_dependency_pinned() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    names = {name.lower().replace("_", "-") for d in wanted if (name := re.match(r"[\w.-]+", d)[0]) != "octavo"}
    locked = set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert names <= locked, names - locked
