"""Rules of every Dockerfile; e2e builds the operator's image."""

import fnmatch
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))


@dataclass(frozen=True)
class Instruction:
    word: str
    rest: str


def read(path: Path) -> list[Instruction]:
    """Instructions with their continuation lines joined, comments left out."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Instruction(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in joined.splitlines()]


def stages(path: Path) -> list[list[Instruction]]:
    found: list[list[Instruction]] = []
    for instruction in read(path):
        if instruction.word == "FROM":
            found.append([])
        if found:
            found[-1].append(instruction)
    return found


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def dockerfile(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


def test_there_is_one_for_each_image() -> None:
    assert [path.stem for path in FILES] == ["operator", "server-cuda", "server"]


def test_the_base_can_be_chosen_and_is_pinned_by_default(dockerfile: Path) -> None:
    first, *_ = read(dockerfile)
    assert first.word == "ARG"
    assert re.fullmatch(r"BASE=docker\.io/library/python:3\.11\.\d+-slim-\w+", first.rest)
    assert {i.rest.split()[0] for stage in stages(dockerfile) for i in stage if i.word == "FROM"} == {"${BASE}"}


def test_what_builds_is_not_in_the_image(dockerfile: Path) -> None:
    build, final = stages(dockerfile)
    assert build[0].rest == "${BASE} AS build"
    assert not [i for i in final if i.word == "RUN" and "pip" in i.rest]
    assert [i.rest for i in final if i.word == "COPY"] == ["--from=build /opt/octavo /opt/octavo"]


def test_it_runs_as_a_numbered_user_that_is_not_root(dockerfile: Path) -> None:
    final = stages(dockerfile)[-1]
    users = [i.rest for i in final if i.word == "USER"]
    assert users == (["65532:65532"] if dockerfile.stem == "operator" else ["1000:1000"])
    assert [i.word for i in final if i.word in ("USER", "RUN")][-1] == "USER"


def test_packages_are_those_of_the_lock(dockerfile: Path) -> None:
    installs = [i.rest for i in read(dockerfile) if i.word == "RUN" and "pip install" in i.rest]
    assert f"COPY docker/requirements/{dockerfile.stem}.txt /src/requirements.txt" in [
        f"{i.word} {i.rest}" for i in read(dockerfile)
    ]
    for install in installs:
        for command in re.findall(r"pip install (.*?)(?:&&|$)", install):
            assert "--no-deps" in command or "hatchling==${HATCHLING}" in command
    assert not (ROOT / "docker" / "requirements" / f"{dockerfile.stem}.txt").read_text().count(">=")


def test_debian_packages_leave_no_lists_and_no_recommendations(dockerfile: Path) -> None:
    for instruction in read(dockerfile):
        if instruction.word == "RUN" and "apt-get" in instruction.rest:
            installs = re.findall(r"apt-get install ([^&;]*)", instruction.rest)
            assert all("--no-install-recommends" in install and "--yes" in install for install in installs)
            assert "rm -rf /var/lib/apt/lists/*" in instruction.rest


def test_nothing_is_fetched_but_packages(dockerfile: Path) -> None:
    for instruction in read(dockerfile):
        assert instruction.word != "ADD"
        assert not re.search(r"\b(curl|wget) +(-|http)", instruction.rest)


def test_servers_have_what_kuberay_calls_in_them() -> None:
    """KubeRay 1.5: ``/bin/bash -c -- ray start``, probes ``bash -c "wget … | grep success"``."""
    for path in FILES:
        if path.stem == "operator":
            continue
        final = " ".join(i.rest for i in stages(path)[-1])
        for program in ("bash", "wget", "grep"):
            assert re.search(rf"apt-get install [^&]*\b{program}\b", final)
        assert "ln -s /opt/octavo/bin/ray" in final


def test_the_cuda_server_keeps_what_triton_calls_at_run_time() -> None:
    final = " ".join(i.rest for i in stages(ROOT / "docker" / "server-cuda.Dockerfile")[-1])
    for package in ("gcc", "libc6-dev", "python3-dev"):
        assert re.search(rf"apt-get install [^&]*\b{package}\b", final)
    assert "gcc" not in " ".join(i.rest for i in stages(ROOT / "docker" / "server.Dockerfile")[-1])


def _ignored(path: str) -> bool:
    """Docker's rules: the last line that matches wins; a folder's line holds for all in it."""
    ignored = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        keep, pattern = pattern.startswith("!"), pattern.lstrip("!")
        parts = path.split("/")
        prefixes = ["/".join(parts[: n + 1]) for n in range(len(parts))]
        anywhere = pattern.removeprefix("**/")
        candidates = parts if pattern.startswith("**/") else prefixes
        if any(fnmatch.fnmatchcase(candidate, anywhere) for candidate in candidates):
            ignored = not keep
    return ignored


def test_the_context_has_all_that_is_copied_and_nothing_else() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not listed:
        pytest.skip("no git here to list the files by")
    context = {path for path in listed if not _ignored(path)}
    copied = {word for path in FILES for i in stages(path)[0] if i.word == "COPY" for word in i.rest.split()[:-1]}
    for word in copied:
        assert any(path == word or path.startswith(f"{word}/") for path in context), word
    roots = tuple(copied | {"docker/requirements"})
    assert [path for path in context if not path.startswith(roots)] == []
    for secret in (".venv/bin/python", ".git/config", "tests/conftest.py", "api/octavo_api/__pycache__/x.pyc", ".env"):
        assert _ignored(secret), secret


def test_every_source_root_of_the_wheel_is_copied() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    roots = {package.split("/")[0] for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    for path in FILES:
        copied = {i.rest.split()[0] for i in stages(path)[0] if i.word == "COPY"}
        assert roots <= copied


def test_the_publishing_workflow_pins_actions_and_builds_every_image() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "publish.yaml").read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    uses = [step["uses"] for step in steps if "uses" in step]
    assert uses
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@v\d+\.\d+\.\d+", use) for use in uses)
    built = {item["file"] for item in workflow["jobs"]["image"]["strategy"]["matrix"]["include"]}
    assert built == {path.stem for path in FILES}
    assert workflow["jobs"]["image"]["needs"] == "test"
    assert workflow["permissions"] == {"contents": "read"}
