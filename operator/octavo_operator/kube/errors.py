"""Errors of the Kubernetes API server, as the operator distinguishes them."""

import json
from collections.abc import Mapping
from typing import Any

_MESSAGE_LENGTH = 512


class KubeError(Exception):
    """Failure of a call to the API server. ``message`` names the call and quotes the server."""

    reason = "ApiError"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        """Seconds that the server asks to wait."""


class NotFound(KubeError):
    reason = "NotFound"


class KindMissing(KubeError):
    """The API server does not know the kind: its CustomResourceDefinition is not installed."""

    reason = "KindMissing"


class Conflict(KubeError):
    """The object has changed since it was read, or exists already."""

    reason = "Conflict"


class Forbidden(KubeError):
    """RBAC, a quota or an admission plugin does not allow it."""

    reason = "Forbidden"


class NamespaceTerminating(Forbidden):
    """Nothing can be created any more in this namespace."""

    reason = "NamespaceTerminating"


class Rejected(KubeError):
    """The object is invalid: the same call fails the same way until something is changed."""

    reason = "Rejected"


class TooManyRequests(KubeError):
    reason = "TooManyRequests"


class Unavailable(KubeError):
    """No answer, no answer in time, an error of the server, or credentials that it does not accept now."""

    reason = "Unavailable"


def error_of(call: str, status: int, headers: Mapping[str, str], body: bytes) -> KubeError:
    """Turn an answer of status 400 or above into an error. ``call`` names the request, like ``GET /apis/…``."""
    answer = _status(body)
    details = answer.get("details") or {}
    listed = [cause for cause in details.get("causes") or () if isinstance(cause, dict)]
    causes, fields = {cause.get("reason") for cause in listed}, {cause.get("field") for cause in listed}
    text = str(answer.get("message") or "no reason given")[:_MESSAGE_LENGTH]
    message = f"{call}: {status}: {text}"
    match status:
        case 403 | 409 if "NamespaceTerminating" in causes:
            return NamespaceTerminating(message)
        case 403:
            return Forbidden(message)
        # The answer names a missing object. It names none for a path that the server does not know.
        case 404:
            return NotFound(message) if details.get("name") else KindMissing(message)
        case 409:
            return Conflict(message)
        # A failed "test" of a JSON patch names no object, an invalid object is named.
        case 422 if not details.get("name") and not causes:
            return Conflict(message)
        # The apply met another object that has taken the name since.
        case 422 if "metadata.uid" in fields:
            return Conflict(message)
        case 429:
            return TooManyRequests(message, retry_after=_retry_after(headers, details))
        case 400 | 405 | 413 | 415 | 422:
            return Rejected(message)
        case _:
            return Unavailable(message, retry_after=_retry_after(headers, details))


def _status(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) and answer.get("kind") == "Status" else {}


def _retry_after(headers: Mapping[str, str], details: Mapping[str, Any]) -> float | None:
    value = headers.get("Retry-After") or details.get("retryAfterSeconds")
    try:
        return max(0.0, float(value)) if value is not None else None
    except (TypeError, ValueError):
        return None
