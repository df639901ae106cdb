"""Builds an image from its Dockerfile by buildah, on a base that debootstrap makes: no registry is asked.

Base, layers and archives are kept in a cache outside the checkout. A mirror of the package index, a proxy and the
machine's certificates are taken from the environment, and none of them gets into the image.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from octavo_testing.kube.tools import cache
from octavo_testing.processes import StartFailed

SUITE = "bookworm"
_PACKAGES = ("python3", "python3-venv", "ca-certificates")
_CERTIFICATES = "/etc/ssl/certs"
_MOST_STEPS = 80
"""Some 15 of them are of one build, with 100 MB in all."""


def build(dockerfile: Path, context: Path, name: str) -> Path:
    """An OCI archive of the image under this name; every step whose inputs are what they were comes from the cache."""
    with _cache() as folder:
        base = _base(folder)
        began = time.monotonic()
        identity = folder / "identity"
        index = os.environ.get("PIP_INDEX_URL")
        _buildah(
            folder,
            "build",
            "--layers",
            f"--file={dockerfile}",
            f"--build-arg=BASE={base}",
            *([f"--build-arg=PIP_INDEX_URL={index}"] if index else []),
            *([f"--volume={_CERTIFICATES}:{_CERTIFICATES}:ro"] if Path(_CERTIFICATES).is_dir() else []),
            f"--iidfile={identity}",
            f"--tag={name}",
            str(context),
        )
        image = identity.read_text().strip().removeprefix("sha256:")
        archive = folder / f"{dockerfile.stem}-{image[:16]}.tar"
        if not archive.exists():
            for old in folder.glob(f"{dockerfile.stem}-*.tar"):
                old.unlink()
            partial = archive.with_suffix(".partial")
            partial.unlink(missing_ok=True)
            _buildah(folder, "push", "--quiet", "--disable-compression", image, f"oci-archive:{partial}:{name}")
            partial.rename(archive)
            _bound(folder)
        print(f"{name} was built in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        return archive


def _bound(folder: Path) -> None:
    """Forgets all steps once there are many: each change of the sources leaves its own behind."""
    if len(_listed(folder, "--all")) > _MOST_STEPS:
        _buildah(folder, "rmi", "--prune")


def _listed(folder: Path, *flags: str) -> list[dict[str, Any]]:
    return list(json.loads(_buildah(folder, "images", "--json", *flags) or "[]") or ())


def _base(folder: Path) -> str:
    """The name of the base image, made where it is missing."""
    key = hashlib.sha256(json.dumps([SUITE, _PACKAGES]).encode()).hexdigest()[:12]
    name = f"localhost/octavo-base:{key}"
    if any(name in (image.get("names") or ()) for image in _listed(folder)):
        return name
    print(f"making a {SUITE} base by debootstrap", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        root = Path(made, "root")
        _run(["debootstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}", SUITE, str(root)])
        for spare in ("var/cache/apt/archives", "var/lib/apt/lists"):
            shutil.rmtree(root / spare, ignore_errors=True)
            (root / spare).mkdir(parents=True)
        Path(made, "Dockerfile").write_text("FROM scratch\nCOPY root/ /\n")
        _buildah(folder, "build", f"--tag={name}", made)
    return name


def _buildah(folder: Path, *arguments: str) -> str:
    storage = [f"--root={folder / 'storage'}", f"--runroot={folder / 'run'}", "--storage-driver=overlay"]
    return _run(["buildah", *storage, *arguments], BUILDAH_ISOLATION="chroot")


def _run(command: list[str], **environment: str) -> str:
    done = subprocess.run(
        command, env=os.environ | environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise StartFailed(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


@contextmanager
def _cache() -> Iterator[Path]:
    folder = cache() / "e2e-images"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
