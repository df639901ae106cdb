"""Ray Serve of this process, in the form that the operator's client requires."""

from collections.abc import Mapping
from typing import Any

from octavo_operator.serve.details import error_line
from octavo_operator.serve.errors import Refused, Unreachable
from octavo_serving.ray_adapter import Controller


class InProcess:
    """A ``ServeTransport`` without a dashboard. Its calls block, so nothing else must run during a call."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def version(self) -> str:
        return str(self._controller.version())

    async def details(self) -> Mapping[str, Any]:
        try:
            details: Mapping[str, Any] = self._controller.details()
        except Controller.UNREACHABLE as error:
            raise Unreachable(f"its controller: {error_line(str(error))}") from None
        return details

    async def put_config(self, config: Mapping[str, Any]) -> None:
        try:
            self._controller.put(config)
        except Controller.REFUSED as error:
            raise Refused(f"Serve rejected the configuration: {error_line(str(error))}") from None
        except Controller.UNREACHABLE as error:
            raise Unreachable(f"its controller: {error_line(str(error))}") from None
