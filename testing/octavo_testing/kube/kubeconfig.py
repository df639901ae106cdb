"""Files that tell a client where the API server is and who it is itself."""

import base64
import json
from pathlib import Path

from octavo_testing.certificates import Pair


def write(path: Path, server: str, authority: bytes, credential: Pair | str, namespace: str = "default") -> Path:
    """``credential`` is a client certificate or a bearer token. JSON is YAML too."""
    if isinstance(credential, Pair):
        user = {"client-certificate-data": _text(credential.certificate), "client-key-data": _text(credential.key)}
    else:
        user = {"token": credential}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "e2e", "cluster": {"server": server, "certificate-authority-data": _text(authority)}}],
        "users": [{"name": "e2e", "user": user}],
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e", "namespace": namespace}}],
        "current-context": "e2e",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(document, indent=1))
    return path


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
