"""Errors of a Ray dashboard. A message never quotes the body of an answer."""

from octavo_operator.model.observed import Reach


class ServeError(Exception):
    """Failure at a Ray dashboard. ``reach`` is the result of the operator's call; ``reason`` is for Events."""

    reach = Reach.UNREACHABLE
    reason = "RayUnreachable"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Unreachable(ServeError):
    """No answer, a server error, no answer in time, or an answer that is not Serve's."""


class AuthFailed(ServeError):
    reach = Reach.AUTH_FAILED
    reason = "RayAuthFailed"


class Incompatible(ServeError):
    """No Serve in this Ray, or another version."""

    reach = Reach.INCOMPATIBLE
    reason = "RayIncompatible"


class Refused(ServeError):
    """Serve rejected the configuration, and would reject it again."""

    reach = Reach.OK
    reason = "ServeConfigRefused"


class NameConflict(ServeError):
    """An application of this name exists and belongs to another owner."""

    reach = Reach.OK
    reason = "ApplicationNameConflict"


class ServeBusy(ServeError):
    """Another application's configuration is not known now, so a PUT would lose it. The operator retries."""

    reach = Reach.OK
    reason = "ServeBusy"
