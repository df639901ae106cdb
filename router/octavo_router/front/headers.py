"""Values that both front ends read from a request's headers or metadata."""

import re
import uuid

from octavo_api.errors import InvalidRequest

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def request_id(given: str | None) -> str:
    """Return the client's ``X-Request-Id``, or a random one if the client sent none. Raise ``InvalidRequest``."""
    if given is None:
        return uuid.uuid4().hex
    if not _REQUEST_ID.fullmatch(given):
        raise InvalidRequest.field("x-request-id", given, "1 to 128 letters, digits, and . _ : -")
    return given


def bearer(header: str | None) -> str | None:
    """Return the key of an ``Authorization: Bearer KEY`` header."""
    scheme, _, key = (header or "").partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None
