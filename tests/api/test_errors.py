import grpc
import pytest

from octavo_api import errors
from octavo_api.errors import EngineFailure, InvalidRequest, OctavoError, RequestError
from octavo_api.v1 import replica_pb2


def subclasses(cls: type) -> list[type]:
    return [found for sub in cls.__subclasses__() for found in (sub, *subclasses(sub))]


KINDS = [kind for kind in subclasses(RequestError) if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_a_status_a_code_and_a_type(kind: type[RequestError]) -> None:
    assert 400 <= kind.http_status < 600
    assert isinstance(kind.grpc_code, grpc.StatusCode)
    assert kind.grpc_code is not grpc.StatusCode.OK
    assert kind.type
    assert kind.__doc__


@pytest.mark.parametrize("kind", KINDS)
def test_clients_and_servers_are_blamed_alike_by_http_and_grpc(kind: type[RequestError]) -> None:
    servers = {"INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED"}
    assert (kind.http_status >= 500) == (kind.grpc_code.name in servers)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("param", "retry_after_s"), [(None, None), ("stop[1]", 2.5)])
def test_the_wire_changes_nothing(kind: type[RequestError], param, retry_after_s) -> None:
    error = kind("message é", param=param, retry_after_s=retry_after_s)
    wire = error.to_proto().SerializeToString()
    again = RequestError.from_proto(replica_pb2.Error.FromString(wire))
    assert type(again) is kind
    assert (again.message, again.param, again.retry_after_s) == ("message é", param, retry_after_s)
    assert again.openai() == error.openai()


def test_an_error_that_this_build_does_not_know_is_the_engines() -> None:
    for kind in ("FromTheFuture", "", "OctavoError"):
        assert type(RequestError.from_proto(replica_pb2.Error(kind=kind, message="x"))) is EngineFailure


def test_openais_object() -> None:
    error = InvalidRequest("no", param="n").openai()
    assert error == {"error": {"message": "no", "type": "invalid_request_error", "param": "n", "code": None}}


def test_long_values_are_shortened() -> None:
    error = InvalidRequest.field("prompt", "x" * 10_000, "less")
    assert len(error.message) < 120
    assert error.message.endswith("..., allowed: less")


def test_codes_tell_errors_apart() -> None:
    codes = [kind.code for kind in KINDS if kind.code]
    assert len(codes) == len(set(codes))


def test_all_are_one_family() -> None:
    assert all(issubclass(kind, OctavoError) for kind in KINDS)
    assert not any(issubclass(kind, errors.StartupError) for kind in KINDS)
