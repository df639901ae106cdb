"""Prints what one image needs of requirements.lock: the lines of an extra and of all that it asks for.

    python tools/requirements_for.py operator > docker/requirements/operator.txt

The lock says under each package who asked for it, so nothing needs to be installed to read it. ``--cpu`` leaves out
what only torch's CUDA build asks for, and takes the CPU build instead.
"""

import argparse
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGES = {
    "operator": ("operator", False),
    "server": ("serving,cli", True),
    "server-cuda": ("serving,cli", False),
}
"""File name under docker/requirements: extras, and whether torch is the CPU build."""

_PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)(\[[a-z,-]+\])?==(\S+)")
_NAME = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[([A-Za-z0-9,\s-]+)\])?")
_CUDA = ("nvidia-", "cuda-", "triton")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def direct(project: dict[str, object], extras: Iterable[str]) -> set[str]:
    """The names that pyproject.toml itself asks for, by these extras and those that they include."""
    table = project["project"]
    assert isinstance(table, dict)
    optional = table["optional-dependencies"]
    wanted, done, names = list(extras), set[str](), set[str]()
    lines = list(table["dependencies"])
    while wanted:
        extra = wanted.pop()
        if extra in done:
            continue
        done.add(extra)
        if extra not in optional:
            raise SystemExit(f"{extra}: no such extra in pyproject.toml, there are {', '.join(sorted(optional))}")
        lines += optional[extra]
        # An extra may name this distribution with more extras: octavo[engine,router].
        for line in optional[extra]:
            match = _NAME.match(line)
            assert match is not None, line
            if canonical(match[1]) == table["name"]:
                wanted += [word.strip() for word in (match[2] or "").split(",")]
    for line in lines:
        match = _NAME.match(line)
        assert match is not None, line
        names.add(canonical(match[1]))
    return names - {str(table["name"])}


def read_lock(text: str) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Returns the pinned line of each package, and for each package whom it asks for."""
    pins: dict[str, str] = {}
    asks: dict[str, set[str]] = defaultdict(set)
    current = ""
    for line in text.splitlines():
        if match := _PIN.match(line):
            current = canonical(match[1])
            pins[current] = line.strip()
        elif line.startswith("    #"):
            parent = line.strip().removeprefix("#").strip().removeprefix("via").strip()
            if parent:
                asks[canonical(parent.split(" ")[0])].add(current)
    return pins, asks


def closure(names: Iterable[str], asks: dict[str, set[str]], without: tuple[str, ...]) -> set[str]:
    found, queue = set[str](), list(names)
    while queue:
        name = queue.pop()
        if name in found or name.startswith(without):
            continue
        found.add(name)
        queue += asks.get(name, ())
    return found


def requirements(extras: Iterable[str], *, cpu: bool = False, root: Path = ROOT) -> list[str]:
    """The pinned lines for ``extras``, sorted."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    pins, asks = read_lock((root / "requirements.lock").read_text())
    overridden = {
        canonical(line.split(";")[0].strip())
        for line in project["tool"]["uv"]["override-dependencies"]
        if "'never'" in line
    }
    found = closure(direct(project, extras), asks, _CUDA if cpu else ()) - overridden
    if missing := sorted(found - pins.keys()):
        raise SystemExit(f"requirements.lock does not pin {', '.join(missing)}: run make lock")
    lines = [pins[name] for name in sorted(found)]
    return [f"{line}+cpu" if cpu and line.startswith("torch==") else line for line in lines]


def render(image: str, root: Path = ROOT) -> str:
    extras, cpu = IMAGES[image]
    lines = requirements(extras.split(","), cpu=cpu, root=root)
    return f"# Made from requirements.lock by tools/requirements_for.py --image {image}\n" + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extras", nargs="?", help="one extra of pyproject.toml, or several with commas")
    parser.add_argument("--cpu", action="store_true", help="torch's CPU build")
    parser.add_argument("--image", choices=IMAGES, help="an image's file, as committed")
    parser.add_argument("--write", action="store_true", help="write all of docker/requirements")
    options = parser.parse_args()
    if options.write:
        for image in IMAGES:
            (ROOT / "docker" / "requirements" / f"{image}.txt").write_text(render(image))
    elif options.image:
        sys.stdout.write(render(options.image))
    elif options.extras:
        sys.stdout.write("\n".join(requirements(options.extras.split(","), cpu=options.cpu)) + "\n")
    else:
        parser.error("name an extra, or --image, or --write")


if __name__ == "__main__":
    main()
