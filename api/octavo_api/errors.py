"""Every error that a user can meet, with its HTTP status, gRPC code and OpenAI ``type``.

A message names the field, the value that was given, and what is allowed. ``RequestError`` is an answer to one request;
``StartupError`` ends a command with a non-zero exit before anything is served.
"""

from typing import Any, ClassVar, Self

import grpc

from octavo_api.v1 import replica_pb2


class OctavoError(Exception):
    """Base of all errors of this project."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class RequestError(OctavoError):
    """The answer to one request. Subclasses set the class attributes.

    ``param`` is the request's field as the client wrote it, ``retry_after_s`` is sent as ``Retry-After``.
    """

    http_status: ClassVar[int] = 500
    grpc_code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.retry_after_s = retry_after_s

    def openai(self) -> dict[str, Any]:
        """Returns OpenAI's error object."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def to_proto(self) -> replica_pb2.Error:
        return replica_pb2.Error(
            kind=type(self).__name__,
            message=self.message,
            param=self.param or "",
            retry_after_s=self.retry_after_s or 0.0,
        )

    @staticmethod
    def from_proto(error: replica_pb2.Error) -> "RequestError":
        """Returns the error that the replica raised; an unknown kind becomes ``EngineFailure``."""
        kind = _KINDS.get(error.kind, EngineFailure)
        return kind(error.message, param=error.param or None, retry_after_s=error.retry_after_s or None)


class InvalidRequest(RequestError):
    """A field of the request is missing, of the wrong type, out of range, or not supported."""

    http_status = 400
    grpc_code = grpc.StatusCode.INVALID_ARGUMENT
    type = "invalid_request_error"

    @classmethod
    def field(cls, param: str, value: object, allowed: str) -> Self:
        """Builds the message of all field errors: ``param``, the value given (shortened), what is allowed."""
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        return cls(f"{param}: got {shown}, allowed: {allowed}", param=param)


class ContextLengthExceeded(InvalidRequest):
    """The prompt, or prompt + max_tokens, is longer than ``max_model_len``."""

    code = "context_length_exceeded"


class CacheCapacityExceeded(InvalidRequest):
    """The request could never fit into the replica's KV cache, even alone."""

    code = "kv_cache_capacity_exceeded"


class RequestTooLarge(RequestError):
    """The body is larger than the gateway reads."""

    http_status = 413
    grpc_code = grpc.StatusCode.INVALID_ARGUMENT
    type = "invalid_request_error"
    code = "request_too_large"


class AuthenticationFailed(RequestError):
    """No API key, or one that the gateway does not know."""

    http_status = 401
    grpc_code = grpc.StatusCode.UNAUTHENTICATED
    type = "invalid_request_error"
    code = "invalid_api_key"


class ModelNotFound(RequestError):
    """``model`` names nothing that is served here."""

    http_status = 404
    grpc_code = grpc.StatusCode.NOT_FOUND
    type = "invalid_request_error"
    code = "model_not_found"


class NotFound(RequestError):
    """No such path."""

    http_status = 404
    grpc_code = grpc.StatusCode.UNIMPLEMENTED
    type = "invalid_request_error"
    code = "not_found"


class MethodNotAllowed(RequestError):
    """The path exists, the method does not."""

    http_status = 405
    grpc_code = grpc.StatusCode.UNIMPLEMENTED
    type = "invalid_request_error"
    code = "method_not_allowed"


class QueueFull(RequestError):
    """Gateway or engine has as many requests as it takes; come back after ``retry_after_s``."""

    http_status = 429
    grpc_code = grpc.StatusCode.RESOURCE_EXHAUSTED
    type = "rate_limit_error"
    code = "queue_full"


class NoReplica(RequestError):
    """No engine replica can take requests now."""

    http_status = 503
    grpc_code = grpc.StatusCode.UNAVAILABLE
    type = "service_unavailable"
    code = "no_replica"


class ReplicaLost(RequestError):
    """The replica that was generating this answer went away after it had shown tokens, or several did, one by one."""

    http_status = 502
    grpc_code = grpc.StatusCode.UNAVAILABLE
    type = "service_unavailable"
    code = "replica_lost"


class Draining(RequestError):
    """The process is shutting down and takes no new requests."""

    http_status = 503
    grpc_code = grpc.StatusCode.UNAVAILABLE
    type = "service_unavailable"
    code = "draining"


class DeadlineExceeded(RequestError):
    """The request's deadline, or the gateway's request timeout, has passed."""

    http_status = 504
    grpc_code = grpc.StatusCode.DEADLINE_EXCEEDED
    type = "timeout_error"
    code = "deadline_exceeded"


class EngineFailure(RequestError):
    """The engine failed at this request, or as a whole; its log has the traceback."""

    code = "engine_failure"


class StartupError(OctavoError):
    """A command cannot start; the message says what to change."""


class ConfigurationError(StartupError):
    """A setting or a document is wrong."""


class ModelError(StartupError):
    """The model cannot be found, read or run."""


class NotEnoughMemory(StartupError):
    """Weights and a minimum of KV cache do not fit into the memory limit."""


class PortInUse(StartupError):
    """Something listens there already."""


def _subclasses(cls: type[RequestError]) -> dict[str, type[RequestError]]:
    found = {}
    for sub in cls.__subclasses__():
        found[sub.__name__] = sub
        found.update(_subclasses(sub))
    return found


_KINDS = _subclasses(RequestError)
