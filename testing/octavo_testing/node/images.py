"""OCI images written file by file: the pause image, and one that holds nothing but an operating system's skeleton."""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"


@dataclass(slots=True)
class Layer:
    """Files of one layer, in the order in which they were added."""

    _buffer: io.BytesIO = field(default_factory=io.BytesIO)

    def folder(self, path: str, mode: int = 0o755, owner: int = 0) -> None:
        self._add(_entry(path, tarfile.DIRTYPE, mode, owner))

    def link(self, path: str, target: str) -> None:
        entry = _entry(path, tarfile.SYMTYPE, 0o777, 0)
        entry.linkname = target
        self._add(entry)

    def file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self._add(_entry(path, tarfile.REGTYPE, mode, 0), content)

    def content(self) -> bytes:
        return self._buffer.getvalue() + tarfile.NUL * 2 * tarfile.BLOCKSIZE

    def _add(self, entry: tarfile.TarInfo, content: bytes = b"") -> None:
        entry.size = len(content)
        padding = -len(content) % tarfile.BLOCKSIZE
        self._buffer.write(entry.tobuf(tarfile.PAX_FORMAT) + content + tarfile.NUL * padding)


def write(path: Path, name: str, layer: Layer, config: Mapping[str, Any]) -> Path:
    """An archive with one image of one layer; ``config`` is the part of that name in the image's configuration."""
    content = layer.content()
    layer_blob = _descriptor(_LAYER, content)
    machine = {"architecture": _ARCHITECTURES.get(os.uname().machine, os.uname().machine), "os": "linux"}
    configuration = _json(
        {**machine, "config": config, "rootfs": {"type": "layers", "diff_ids": [layer_blob["digest"]]}}
    )
    config_blob = _descriptor(_CONFIG, configuration)
    manifest = _json({"schemaVersion": 2, "mediaType": _MANIFEST, "config": config_blob, "layers": [layer_blob]})
    manifest_blob = _descriptor(_MANIFEST, manifest)
    manifest_blob |= {"annotations": {"io.containerd.image.name": name}, "platform": machine}
    index = _json({"schemaVersion": 2, "manifests": [manifest_blob]})
    with tarfile.open(path, "w") as archive:
        _put(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _put(archive, "index.json", index)
        for blob in (content, configuration, manifest):
            _put(archive, f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", blob)
    return path


def write_pause(path: Path, name: str, program: Path) -> Path:
    layer = Layer()
    layer.file("pause", program.read_bytes(), 0o755)
    return write(path, name, layer, {"Entrypoint": ["/pause"], "User": "65535:65535"})


def _entry(path: str, kind: bytes, mode: int, owner: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.type, entry.mode, entry.uid, entry.gid = kind, mode, owner, owner
    return entry


def _put(archive: tarfile.TarFile, path: str, content: bytes) -> None:
    entry = _entry(path, tarfile.REGTYPE, 0o644, 0)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{hashlib.sha256(blob).hexdigest()}", "size": len(blob)}


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
