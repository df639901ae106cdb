"""Body of a request: read within a limit, and parsed as JSON."""

import json
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Receive

from octavo_api.errors import InvalidRequest, RequestTooLarge


class ClientDisconnected(Exception):
    """The client closed the connection before it had sent its request or read its answer."""


async def read_body(receive: Receive, headers: Headers, limit: int) -> bytes:
    """Return the body. Raise ``RequestTooLarge`` as soon as it is known to be longer than ``limit`` bytes."""
    announced = headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(f"{int(announced)} bytes", limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(f"more than {limit} bytes", limit)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(size: str, limit: int) -> RequestTooLarge:
    return RequestTooLarge(f"body: got {size}, allowed: at most {limit} bytes (router.max_body_bytes)")


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object without its fields that are null. They mean the same as absent fields.

    Content types are not checked, because ``curl -d`` sends a wrong one. Raise ``InvalidRequest``.
    """
    try:
        value = json.loads(body.decode(), parse_constant=_reject_constant)
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"body: got invalid UTF-8 at byte {error.start}, allowed: JSON in UTF-8") from None
    except UnicodeEncodeError:
        raise InvalidRequest("body: got a lone surrogate in a string, allowed: valid Unicode") from None
    except RecursionError:
        raise InvalidRequest("body: got JSON nested too deeply, allowed: fewer levels") from None
    except ValueError as error:
        raise InvalidRequest(f"body: got invalid JSON ({error}), allowed: one JSON object") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"body: got a JSON {_KINDS[type(value)]}, allowed: one JSON object")
    return {name: item for name, item in value.items() if item is not None}


_KINDS: dict[type, str] = {
    list: "array",
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
}


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
