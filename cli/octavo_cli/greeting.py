"""Text for the user once the endpoint is up."""

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

from octavo_api.resource.deployment import ServingDeployment


def greeting(deployment: ServingDeployment, api_key_file: Path | None, logs: Path) -> str:
    """Return the endpoint's addresses, a working ``curl`` line, the chat command, and the folder of the logs."""
    http, grpc = deployment.spec.endpoint.http.port, deployment.spec.endpoint.grpc.port
    body = {
        "model": deployment.served_name,
        "messages": [{"role": "user", "content": "What is a book?"}],
        "max_tokens": 48,
        "temperature": 0,
    }
    key = (
        f" -H \"Authorization: Bearer $(awk 'NF && !/^#/ {{print $2; exit}}' {shlex.quote(str(api_key_file))})\""
        if api_key_file
        else ""
    )
    chat = f"{_command()} chat" + (f" --url http://127.0.0.1:{http}" if http != 8000 else "")
    if api_key_file:
        chat += f" --api-key-file {shlex.quote(str(api_key_file))}"
    return (
        f"  model  {deployment.served_name}\n"
        f"  HTTP   http://127.0.0.1:{http}/v1\n"
        f"  gRPC   127.0.0.1:{grpc}\n"
        f"  chat   {chat}\n"
        f"  logs   {logs}\n\n"
        f"curl http://127.0.0.1:{http}/v1/chat/completions -H 'Content-Type: application/json'{key} "
        f"-d {shlex.quote(json.dumps(body))}\n\n"
        "Press Ctrl-C to stop."
    )


def _command() -> str:
    """Return the command of this program from here: ``octavo`` if the shell finds it, else its path."""
    if shutil.which("octavo"):
        return "octavo"
    return shlex.quote(os.path.relpath(Path(sys.executable).parent / "octavo"))
