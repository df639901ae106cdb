"""Every error that a user can receive, with its HTTP status, gRPC code and OpenAI ``type``.

A message names the field, the given value and the allowed values. ``RequestError`` is an answer to one request.
``StartupError`` ends a command with a non-zero exit status before it serves a request.
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

    ``param`` is the field of the request as the client wrote it. ``retry_after_s`` is sent as ``Retry-After``.
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
        """Return OpenAI's error object."""
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
        """Return the error that the replica raised. An unknown kind becomes ``EngineFailure``."""
        kind = _KINDS.get(error.kind, EngineFailure)
        return kind(error.message, param=error.param or None, retry_after_s=error.retry_after_s or None)


class InvalidRequest(RequestError):
    """A field of the request is missing, of the wrong type, out of range, or not supported."""

    http_status = 400
    grpc_code = grpc.StatusCode.INVALID_ARGUMENT
    type = "invalid_request_error"

    @classmethod
    def field(cls, param: str, value: object, allowed: str) -> Self:
        """Return the error of a wrong field. Its message has ``param``, the given value (shortened) and ``allowed``."""
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        return cls(f"{param}: got {shown}, allowed: {allowed}", param=param)


class ContextLengthExceeded(InvalidRequest):
    """The prompt, or the prompt and max_tokens together, exceed ``max_model_len``."""

    code = "context_length_exceeded"


class CacheCapacityExceeded(InvalidRequest):
    """The request does not fit into the KV cache of a replica, even alone."""

    code = "kv_cache_capacity_exceeded"


class RequestTooLarge(RequestError):
    """The body is larger than ``maxBodyBytes``."""

    http_status = 413
    grpc_code = grpc.StatusCode.RESOURCE_EXHAUSTED
    type = "invalid_request_error"
    code = "request_too_large"


class AuthenticationFailed(RequestError):
    """The request has no API key, or an unknown one."""

    http_status = 401
    grpc_code = grpc.StatusCode.UNAUTHENTICATED
    type = "invalid_request_error"
    code = "invalid_api_key"


class ModelNotFound(RequestError):
    """This endpoint does not serve the model that ``model`` names."""

    http_status = 404
    grpc_code = grpc.StatusCode.NOT_FOUND
    type = "invalid_request_error"
    code = "model_not_found"


class NotFound(RequestError):
    """The path does not exist."""

    http_status = 404
    grpc_code = grpc.StatusCode.UNIMPLEMENTED
    type = "invalid_request_error"
    code = "not_found"


class MethodNotAllowed(RequestError):
    """The path does not support the method."""

    http_status = 405
    grpc_code = grpc.StatusCode.UNIMPLEMENTED
    type = "invalid_request_error"
    code = "method_not_allowed"


class QueueFull(RequestError):
    """The queue of the gateway or the engine is full. Retry after ``Retry-After`` seconds."""

    http_status = 429
    grpc_code = grpc.StatusCode.RESOURCE_EXHAUSTED
    type = "rate_limit_error"
    code = "queue_full"


class NoReplica(RequestError):
    """No engine replica accepts requests now."""

    http_status = 503
    grpc_code = grpc.StatusCode.UNAVAILABLE
    type = "service_unavailable"
    code = "no_replica"


class ReplicaLost(RequestError):
    """The engine replica was lost after the client had received tokens, or several were lost one after another."""

    http_status = 502
    grpc_code = grpc.StatusCode.UNAVAILABLE
    type = "service_unavailable"
    code = "replica_lost"


class Draining(RequestError):
    """The process shuts down and accepts no new requests."""

    http_status = 503
    grpc_code = grpc.StatusCode.UNAVAILABLE
    type = "service_unavailable"
    code = "draining"


class DeadlineExceeded(RequestError):
    """The deadline of the request, or the request timeout of the gateway, has passed."""

    http_status = 504
    grpc_code = grpc.StatusCode.DEADLINE_EXCEEDED
    type = "timeout_error"
    code = "deadline_exceeded"


class EngineFailure(RequestError):
    """The engine failed in this request or as a whole. Its log has the traceback."""

    code = "engine_failure"


class StartupError(OctavoError):
    """A command cannot start. The message names the remedy."""


class ConfigurationError(StartupError):
    """A setting or a document is invalid."""


class ModelError(StartupError):
    """The model cannot be found, read or run."""


class NotEnoughMemory(StartupError):
    """Weights and the smallest KV cache do not fit into the memory limit."""


class PortInUse(StartupError):
    """Another process listens on the port."""


def _subclasses(cls: type[RequestError]) -> dict[str, type[RequestError]]:
    found = {}
    for sub in cls.__subclasses__():
        found[sub.__name__] = sub
        found.update(_subclasses(sub))
    return found


_KINDS = _subclasses(RequestError)
