"""The gateway's ASGI application in the form that Serve requires."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def without_lifespan(app: Application) -> Application:
    """Return an application that answers Serve's lifespan messages.

    The replica, not Serve's proxy, starts and stops the gateway.
    """

    async def ingress(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    return ingress


def with_doors(app: Application, doors: Callable[[], list[str]]) -> Application:
    """Return an application that answers ``GET /doors`` with the addresses of the gateways' own listeners.

    The path exists behind Serve's proxy only.
    """
    from octavo_router.http.app import route_path

    async def ingress(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or route_path(scope) != "/doors":
            await app(scope, receive, send)
            return
        body = json.dumps({"doors": doors()}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return ingress
